"""State on disk, and wherever else it lives: the only room that touches it.

Invariant: a file is never changed once it is written, only unlinked; so whoever has mapped one reads the same bytes for
as long as he looks.  What is *scratch* had no room in memory and is worthless once its engine is gone: nothing is
synced, everything is deleted.  What *lasts* is named by a manifest, with its length and its checksum: it is durable
before the manifest is, and goes when no manifest that is kept names it.  Both go one way:

    batch_store   an engine's batches: written once to a blob, mapped from it, dropped when nobody needs them
    arrow_file    Arrow files: one writer; a reader that does not trust who wrote them:    flatbuffer, compressed
    protocol      what is asked of a store: blobs, and of one that lasts numbered manifests; what failing means
    blob_folder   blobs in a folder of the local disk:    local, which lasts; scratch, which does not
    s3            blobs in a bucket:    object_store, the requests; cache, blobs by content on this machine
    memory        blobs for tests       opening, a store by its address; address, what is none
    site          a folder of ours: how a file is written to it, what the disk's refusals are called:    state_folder, a
                  state's, put to the proof; folder_lock, the hold on one for scratch
    file_writer   what all bytes go through, counted and hashed       disk, the system calls

    manifest      one version of a state:    manifest_log, one after the other; epochs and feeding, what it keeps of
                  calls; naming, which files an inventory names; fields, what records hold
"""
