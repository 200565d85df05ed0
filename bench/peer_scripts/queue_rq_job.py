"""RQ finds its handlers by the name of a module, which must not be the script itself."""

from _play import did


def handler(value):
    did(value)
