"""The result page: runs of several environments side by side, from the JSON lines that they wrote."""
