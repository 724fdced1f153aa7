"""Several gateway processes behind one port: a supervisor starts, watches and replaces them, and speaks for all."""
