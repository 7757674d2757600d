"""The Arrow files of a state: written, verified and read without trust in their author."""
