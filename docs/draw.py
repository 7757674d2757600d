"""Draw pictures that explain the concepts: ``python docs/draw.py`` writes SVG files to ``docs/pictures``.

Each picture has its own background, and colours for light and dark mode, so it is readable on any page.
"""

from pathlib import Path
from xml.sax.saxutils import escape

STYLE = """
svg { font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
.ground { fill: #f7f9fc; }
.box { fill: #ffffff; stroke: #9aa8bd; stroke-width: 1.2; }
.soft { fill: #e8eef7; stroke: none; }
.key { fill: #dce9fb; stroke: #5b8fd6; stroke-width: 1.2; }
.plus { fill: #dff3e4; stroke: #45a066; stroke-width: 1.2; }
.minus { fill: #fbe3e1; stroke: #cf5d55; stroke-width: 1.2; }
text { fill: #22303f; }
.quiet { fill: #5c6b7f; }
.head { font-weight: 600; }
.mono { font-family: ui-monospace, monospace; }
.line { stroke: #5c6b7f; stroke-width: 1.5; fill: none; }
.dash { stroke-dasharray: 5 4; }
.tip { fill: #5c6b7f; }
.late { stroke: #cf5d55; stroke-width: 1.5; fill: none; stroke-dasharray: 5 4; }
@media (prefers-color-scheme: dark) {
.ground { fill: #1b212b; }
.box { fill: #242c38; stroke: #5d6b80; }
.soft { fill: #2a3444; }
.key { fill: #223a5a; stroke: #6ea2ea; }
.plus { fill: #1f3d2b; stroke: #58b87c; }
.minus { fill: #472726; stroke: #e0776f; }
text { fill: #e4eaf2; }
.quiet { fill: #a3b0c2; }
.line { stroke: #a3b0c2; }
.tip { fill: #a3b0c2; }
.late { stroke: #e0776f; }
}"""
TIP = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
TIP += '<path class="tip" d="M0 0L8 4L0 8z"/></marker>'

MARKED = ' marker-end="url(#tip)"'


class Picture:
    """Picture with a ``width`` and a ``height``, and shapes on a background. ``words`` describes the picture."""

    def __init__(self, width: int, height: int, words: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(words)}</title><style>{STYLE}</style><defs>{TIP}</defs>",
            f'<rect class="ground" width="{width}" height="{height}" rx="10"/>',
        ]

    def box(self, x: float, y: float, w: float, h: float, *lines: str, kind: str = "box", look: str = "") -> None:
        """Draw a box, and write lines of text in the middle of the box."""
        self.parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="{h}" rx="6"/>')
        for number, line in enumerate(lines):
            self.text(x + w / 2, y + h / 2 + 5 + (number - (len(lines) - 1) / 2) * 19, line, look=look)

    def text(self, x: float, y: float, words: str, at: str = "middle", look: str = "") -> None:
        """Draw a line of text."""
        self.parts.append(f'<text class="{look}" x="{x}" y="{y}" text-anchor="{at}">{escape(words)}</text>')

    def line(self, *points: float, kind: str = "line", tip: bool = True) -> None:
        """Draw a line through points. If ``tip`` is true, the line ends with an arrowhead."""
        path = "M" + "L".join(f"{x} {y}" for x, y in zip(points[::2], points[1::2], strict=True))
        self.parts.append(f'<path class="{kind}" d="{path}"{MARKED * tip}/>')

    def dot(self, x: float, y: float, kind: str, r: int = 8) -> None:
        """Draw an event."""
        self.parts.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="{r}"/>')

    def svg(self) -> str:
        """Return the whole picture as SVG."""
        return "\n".join([*self.parts, "</svg>", ""])


def upsert() -> Picture:
    """Draw an upsert, the stored row of its key, and the differences that follow."""
    p = Picture(760, 250, "An upsert meets what its key holds, and becomes a retraction and an assertion")
    p.text(125, 34, "an upsert comes in", look="head")
    p.text(380, 34, "what the key holds", look="head")
    p.text(635, 34, "differences go out", look="head")
    p.box(40, 96, 170, 56, "key 1 now is", "(1, Zug)", kind="key")
    p.box(295, 96, 170, 56, "key 1 was", "(1, Bern)")
    p.box(550, 66, 170, 44, "− (1, Bern)", kind="minus", look="head")
    p.box(550, 138, 170, 44, "+ (1, Zug)", kind="plus", look="head")
    p.line(210, 124, 291, 124)
    p.line(465, 112, 546, 90)
    p.line(465, 136, 546, 158)
    p.text(
        380,
        206,
        "If it holds Zug already, nothing goes out (noop); nor if it holds a later order (stale).",
        look="quiet",
    )
    p.text(380, 228, "A delete gives the retraction alone, with the row that is stored.", look="quiet")
    return p


def clocks() -> Picture:
    """Draw how the order decides between events, and how the time decides when changes become visible."""
    p = Picture(760, 330, "One clock says which event of a key wins, the other at which time a change becomes visible")
    p.text(190, 32, "order: which event of a key wins", look="head")
    p.line(60, 250, 60, 60)
    p.line(60, 250, 345, 250)
    p.text(60, 50, "order_by", look="quiet")
    p.text(200, 300, "the steps, as they come", look="quiet")
    for x, name in ((120, "1"), (200, "2"), (280, "3")):
        p.text(x, 272, f"step {name}", look="quiet")
    p.line(120, 190, 200, 190, 200, 110, 340, 110, kind="line dash", tip=False)
    for x, y, kind, word in (
        (120, 190, "plus", "applied"),
        (200, 110, "plus", "applied"),
        (280, 150, "minus", "stale"),
    ):
        p.dot(x, y, kind)
        p.text(x, y - 14 if kind == "plus" else y + 26, word)
    p.text(300, 100, "held", look="quiet")
    p.text(570, 32, "time: when a change is seen", look="head")
    p.box(412, 92, 103, 96, kind="soft")
    p.line(410, 188, 735, 188)
    for n in range(6):
        p.text(430 + 56 * n, 210, str(n), look="quiet")
    for n, kind in ((0, "plus"), (1, "plus"), (3, "key"), (4, "key")):
        p.dot(430 + 56 * n, 165, kind)
    p.line(516, 76, 516, 196, kind="line dash", tip=False)
    p.text(516, 66, "the frontier, 2", look="head")
    p.text(463, 112, "closed: out")
    p.text(630, 112, "open: they wait")
    p.line(720, 250, 488, 250, 488, 178, kind="late")
    p.text(610, 244, "a late event", look="quiet")
    p.text(570, 300, "hold-back mode; else each step closes its time", look="quiet")
    return p


def arrangement() -> Picture:
    """Draw the runs of versions, the index of keys, and the merges of runs."""
    p = Picture(
        760,
        330,
        "An arrangement keeps versions in sorted runs, merges them in the background, and finds keys by an index",
    )
    p.text(215, 32, "the spine: runs of versions, sorted by hash", look="head")
    rows = ((60, 310, "a run of 8 steps"), (128, 170, "of 4"), (196, 95, "of 2"), (264, 55, "new"))
    for y, w, word in rows:
        p.box(40, y, w, 44, word, kind="plus" if word == "new" else "box")
    for y, w, to in ((264, 55, 95), (196, 95, 170), (128, 170, 310)):
        p.line(40 + w + 6, y + 22, 40 + to - 14, y + 22, 40 + to - 14, y - 22 + 2)
    p.text(140, 292, "merges, a little with each step", at="start", look="quiet")
    p.text(590, 32, "the index: key to its newest version", look="head")
    for n, key in enumerate(("key 1", "key 2", "key 7")):
        p.box(500, 66 + 58 * n, 76, 40, key, kind="key")
        p.box(640, 66 + 58 * n, 88, 40, ("Zug, +1", "Bern, +1", "Chur, +1")[n])
        p.line(576, 86 + 58 * n, 636, 86 + 58 * n)
    p.text(614, 260, "a version: row, time, diff", look="quiet")
    p.text(614, 284, "old versions are kept from a time on,", look="quiet")
    p.text(614, 306, "for reads as of it and later", look="quiet")
    return p


def commit() -> Picture:
    """Draw what a commit contains, and the order of its steps."""
    p = Picture(760, 330, "A commit is one manifest that names the files of an epoch; sinks come after it")
    p.text(140, 32, "1  files, synced", look="head")
    for n, word in enumerate(("versions of rows", "merged runs", "updates of outputs")):
        p.box(40, 56 + 56 * n, 200, 42, word)
    p.text(140, 248, "no manifest names them yet:", look="quiet")
    p.text(140, 268, "a crash here leaves nothing", look="quiet")
    p.text(385, 32, "2  one manifest, linked", look="head")
    p.box(300, 56, 170, 154, "manifest 42", "", "files · epoch", "positions of sources", "what sinks have", kind="key")
    for n in range(3):
        p.line(240, 77 + 56 * n, 296, 110 + 22 * n)
    p.text(385, 248, "its number is given once:", look="quiet")
    p.text(385, 268, "this is the commit", look="quiet")
    p.text(632, 32, "3  then the sinks", look="head")
    p.box(
        540,
        78,
        180,
        110,
        "the target's transaction:",
        "rows of the epoch,",
        "and the record",
        "(state, epoch 42, digest)",
        kind="plus",
    )
    p.line(470, 133, 532, 133)
    p.text(630, 248, "a crash here: the record tells", look="quiet")
    p.text(630, 268, "whether the epoch is in it", look="quiet")
    p.text(380, 310, "After a crash you open the newest manifest. There is nothing else to recover.", look="head")
    return p


def journey() -> Picture:
    """Draw the path of one upsert through the folders of the code."""
    p = Picture(
        760, 330, "An upsert is checked, looked up and resolved; updates pass the operators; the change is kept"
    )
    steps = (
        ("a table", "of events"),
        ("admission:", "cast, check"),
        ("batcher:", "wait for a time"),
        ("look-up:", "prior rows"),
    )
    for n, words in enumerate(steps):
        p.box(24 + 184 * n, 40, 156, 56, *words, kind="key" if n == 0 else "box")
        if n:
            p.line(180 + 184 * (n - 1), 68, 24 + 184 * n - 4, 68)
    p.text(286, 122, "refused rows get a verdict", look="quiet")
    p.box(576, 140, 156, 56, "resolve: a verdict", "for each event")
    p.line(654, 96, 654, 136)
    p.box(392, 140, 156, 56, "updates", "+ new, − old", kind="plus")
    p.line(576, 168, 552, 168)
    p.box(208, 140, 156, 56, "operators:", "join, sum, top")
    p.line(392, 168, 368, 168)
    p.box(24, 140, 156, 56, "outputs:", "rows, time, diff", kind="plus")
    p.line(208, 168, 184, 168)
    p.box(576, 240, 156, 56, "arrangement:", "versions, index")
    p.line(654, 196, 654, 236)
    p.box(208, 240, 156, 56, "commit:", "files, a manifest", kind="key")
    p.line(576, 268, 368, 268)
    p.line(102, 196, 102, 268, 204, 268)
    p.text(472, 260, "the change is kept", look="quiet")
    p.text(380, 320, "Everything is computed before anything is changed.", look="head")
    return p


def partitions() -> Picture:
    """Draw a step on Spark, for a state with several partitions."""
    p = Picture(
        760, 320, "Rows are packed into chunks and shuffled to stages; tasks return receipts; the driver publishes"
    )
    p.text(90, 32, "rows of a batch", look="head")
    p.text(300, 32, "stage 0: by key", look="head")
    p.text(520, 32, "stage 1: by group", look="head")
    p.text(680, 32, "driver", look="head")
    for n in range(3):
        y = 56 + 66 * n
        p.box(24, y, 132, 46, "route and pack")
        p.box(230, y, 140, 46, "resolve, filter")
        p.box(450, y, 140, 46, "join, sum, top")
        p.line(156, y + 23, 226, 79 + 66 * ((n + 1) % 3))
        p.line(156, y + 23, 226, y + 23)
        p.line(370, y + 23, 446, 79 + 66 * ((n + 1) % 3))
        p.line(370, y + 23, 446, y + 23)
        p.line(590, y + 23, 634, 145)
    p.box(638, 100, 102, 92, "checks the", "receipts,", "publishes", kind="key")
    p.text(191, 272, "shuffle of chunks", look="quiet")
    p.text(410, 272, "shuffle of sums", look="quiet")
    p.text(612, 272, "receipts", look="quiet")
    p.text(380, 304, "A task that runs twice writes files that no manifest names.", look="head")
    return p


def connectors() -> Picture:
    """Draw an engine with its sources and sinks."""
    p = Picture(760, 320, "Sources give batches with positions; the engine commits epochs; sinks get them afterwards")
    for n, words in enumerate(
        (("files", "position: file, row"), ("Postgres slot", "position: LSN"), ("Kafka topic", "position: offsets"))
    ):
        p.box(24, 52 + 70 * n, 180, 50, *words, kind="key")
        p.line(204, 77 + 70 * n, 276, 140)
    p.box(280, 92, 200, 100, "engine", "state and positions", "in one manifest")
    p.text(380, 76, "commit, then deliver", look="quiet")
    for n, words in enumerate(
        (
            ("Delta Lake, Iceberg", "epoch in the commit"),
            ("Postgres, DuckDB", "epoch in a table"),
            ("Kafka topic", "epoch in a transaction"),
        )
    ):
        p.box(556, 52 + 70 * n, 180, 50, *words, kind="plus")
        p.line(480, 140, 552, 77 + 70 * n)
    p.text(380, 268, "An epoch that a sink lacks is kept, and delivered again.", look="quiet")
    p.text(380, 304, "A crash neither loses rows nor writes them twice.", look="head")
    return p


PICTURES = {
    "upsert": upsert,
    "clocks": clocks,
    "arrangement": arrangement,
    "commit": commit,
    "journey": journey,
    "partitions": partitions,
    "connectors": connectors,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (Path(__file__).parent / "pictures" / f"{name}.svg").write_text(draw().svg(), "utf-8")
