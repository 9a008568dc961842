"""Files that somebody wrote on purpose: their checksums are right."""

import json
import struct

import google_crc32c

from statestore.codec.trailer import END_LENGTH, FORMAT_VERSION, MAGIC_PREFIX

MAGIC = MAGIC_PREFIX + struct.pack(">H", FORMAT_VERSION)


def edit_trailer(path, change):
    """Change the JSON of a state file's trailer, a dict, and seal the file again."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<I", raw[-END_LENGTH : -END_LENGTH + 4])
    body, text = raw[: -END_LENGTH - length], raw[-END_LENGTH - length : -END_LENGTH]
    fields = json.loads(text)
    change(fields)
    path.write_bytes(body + seal_trailer(json.dumps(fields).encode()))


def seal_trailer(text):
    """What follows the body of a state file whose trailer is that text."""
    return text + struct.pack("<II", len(text), google_crc32c.value(text)) + MAGIC


def edit_json(path, change):
    """Change the JSON object in the last line of a text file."""
    *head, line = path.read_text().rstrip("\n").split("\n")
    fields = json.loads(line)
    change(fields)
    path.write_text("\n".join([*head, json.dumps(fields)]))
