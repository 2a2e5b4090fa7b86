"""examples/ctypes_attention.py declares regard_request as regard.h does, as far as it goes."""

import importlib.util
import os
import pathlib
import re
import unittest

SOURCE = pathlib.Path(os.environ["REGARD_DEV_SOURCE_DIR"])


def header_fields(struct):
    """The names of a struct's fields, in their order."""
    header = (SOURCE / "include/regard/regard.h").read_text()
    body = re.search(r"typedef struct %s \{(.*?)\n\} %s;" % (struct, struct), header, re.S)[1]
    names = []
    for declaration in re.sub(r"//[^\n]*", "", body).split(";"):
        words = re.findall(r"\w+", re.sub(r"\[\d+\]", "", declaration.replace("const", "")))
        names += words[1:]  # behind the type
    return names


class CtypesExample(unittest.TestCase):
    def test_fields_of_the_request_are_the_headers(self):
        spec = importlib.util.spec_from_file_location("ctypes_attention",
                                                      SOURCE / "examples/ctypes_attention.py")
        example = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(example)
        declared = [field[0] for field in example.Request._fields_]
        self.assertEqual(declared, header_fields("regard_request")[:len(declared)])


if __name__ == "__main__":
    unittest.main()
