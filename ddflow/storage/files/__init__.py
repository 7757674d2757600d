"""Write, verify and read the Arrow files of a state, without trust in their author."""
