"""One module a format (or a family that shares a layout), each with a tuple ``FORMATS``."""
