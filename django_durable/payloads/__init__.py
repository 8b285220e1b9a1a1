"""The codec of arguments, results and checkpoints: JSON text, lossless or refused.

str, int, float, bool, None, list and dict with str keys are written as they are. Every other type
is an object with the one key "$", whose value is a list: a tag, then what its reader needs. So is
a dict that has the key "$" itself. Nothing in a stored text can name a callable: the reader knows
the tags of `_READERS` and no others, and the one that imports accepts nothing but Enum members.
"""

from django_durable.payloads.calls import argument_names, bind_arguments, encode_arguments
from django_durable.payloads.reading import decode
from django_durable.payloads.writing import encode

__all__ = ["argument_names", "bind_arguments", "decode", "encode", "encode_arguments"]
