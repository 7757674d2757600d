"""Write, verify and read the Arrow files of a state. The code assumes that an attacker may have written any file."""
