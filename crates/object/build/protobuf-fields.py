#!/usr/bin/env python3
"""Makes protobuf-fields.txt: the protobuf field number of every field of every type that a request body can hold.

    python3 protobuf-fields.py K8S_PB_SRC ARENA_JSON protobuf-fields.txt

K8S_PB_SRC  the `src` folder of the published crate k8s-pb, whose generated Rust carries the numbers as attributes
ARENA_JSON  the arena.json that this crate's build script writes: the types that we read, and their JSON field names

The last argument is rewritten in place. The numbers come from k8s-pb; the marks behind them are kept from the old file, since no
published schema says them; required scalars that are new start with `zero`. Fields of the arena without a number, and new
optional scalars whose mark must be decided by hand, go to stderr.

A field is found by its name without case and punctuation: `pod_i_ps` is `podIPs`. A protobuf field that is no JSON field of its
type is a struct that JSON writes inline: its fields get a number path, `2.1 hostPath` of a Volume.
"""

import json
import pathlib
import re
import sys

HEADER = """\
# The protobuf field numbers of the built-in types, made by protobuf-fields.py; edit only the marks.
#
# TYPE
#  NUMBER FIELD [pointer | zero]
#
# NUMBER is a path where JSON writes the fields of an inner struct inline. Go writes scalars that are not set as zeros, which its
# JSON leaves out unless the field has a mark: `pointer`, a zero was set on purpose; `zero`, JSON always has it (no omitempty).
"""
ATTRIBUTE = re.compile(r'#\[prost\((.*?)tag\s*=\s*"(\d+)"\)\]\s*pub (?:r#)?(\w+):\s*([^;{}]*?),\n', re.S)
STRUCT = re.compile(r"pub struct (\w+) \{(?:\}|(.*?)\n\})", re.S)


def plain(name):
    return re.sub(r"[^a-z0-9]", "", name.lower())


def module_of(definition):
    """The folder of k8s-pb that holds a definition: io.k8s.api.core.v1.Pod -> api/core/v1."""
    path = definition.removeprefix("io.k8s.").rsplit(".", 1)[0]
    return path.replace("-", "_").replace(".", "/")


class Messages:
    """The messages of k8s-pb: folder -> plain name -> [(number, plain field name, attribute, inner type)]."""

    def __init__(self, src):
        self.src = pathlib.Path(src)
        self.folders = {}

    def find(self, folder, name):
        if folder not in self.folders:
            path = self.src / folder / "mod.rs"
            text = path.read_text() if path.exists() else ""
            text = re.sub(r"^\s*///.*\n", "", text, flags=re.M)
            self.folders[folder] = {plain(found[1]): self.fields(found[2] or "") for found in STRUCT.finditer(text)}
        return self.folders[folder].get(plain(name))

    def fields(self, body):
        out = []
        for attribute, number, name, rust in ATTRIBUTE.findall(body + "\n"):
            inner = re.search(r"Option<\s*(?:::prost::alloc::boxed::Box<)?([\w:]+?)>*\s*$", rust)
            out.append((int(number), plain(name), attribute, inner.group(1) if inner else ""))
        return out

    def inner(self, folder, rust_path):
        """The message that a field of a message in `folder` refers to."""
        parts = rust_path.split("::")
        while parts[0] == "super":
            folder, parts = folder.rpartition("/")[0], parts[1:]
        return self.find("/".join([folder, *parts[:-1]]).strip("/"), parts[-1]) or []


def numbers(messages, folder, message, fields, prefix=()):
    """Yields (number path, JSON field) for every field of `message` that JSON knows."""
    for number, name, attribute, inner in message:
        path = (*prefix, number)
        if name in fields:
            yield path, fields[name]
        elif attribute.startswith("message, optional") and not prefix:
            yield from numbers(messages, folder, messages.inner(folder, inner), fields, path)


def old_marks(path):
    """The mark, maybe "", of every field of the old table."""
    marks, current = {}, ""
    for line in path.read_text().splitlines() if path.exists() else []:
        words = line.split()
        if line.startswith(" "):
            marks[current, words[1]] = "".join(words[2:])
        elif line and not line.startswith("#"):
            current = words[0]
    return marks


def mark_of(marks, name, field, definition):
    if (name, field) in marks:
        return marks[name, field]
    if definition["properties"][field].get("type") not in ("string", "integer", "number", "boolean"):
        return ""
    if field in definition.get("required", []):
        return "zero"
    print(f"pointer or not? {name} {field}", file=sys.stderr)
    return ""


def references(schema):
    """The definitions that a schema refers to."""
    if isinstance(schema, dict):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix("#/definitions/")
        schema = list(schema.values())
    for inner in schema if isinstance(schema, list) else []:
        yield from references(inner)


def bodies(arena):
    """The definitions that can be in a request body: the objects, DeleteOptions, and all that they refer to."""
    todo = [name for name in arena if name.endswith("meta.v1.DeleteOptions")]
    for name, definition in arena.items():
        metadata = definition.get("properties", {}).get("metadata", {}).get("$ref", "")
        if metadata.endswith(".ObjectMeta"):
            todo.append(name)
    found = set()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo.extend(references(arena[name]))
    return sorted(found)


def main():
    src, arena_path, out_path = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    arena, messages, marks = json.load(open(arena_path)), Messages(src), old_marks(out_path)
    lines = [HEADER]
    for name in bodies(arena):
        definition = arena[name]
        properties = definition.get("properties")
        if not properties:
            continue
        folder = module_of(name)
        message = messages.find(folder, name.rsplit(".", 1)[1])
        if message is None:
            print(f"no message: {name}", file=sys.stderr)
            continue
        found = dict((field, path) for path, field in numbers(messages, folder, message, {plain(p): p for p in properties}))
        lines.append(name)
        for field, path in sorted(found.items(), key=lambda item: item[1]):
            number = ".".join(map(str, path))
            lines.append(f" {number} {field} {mark_of(marks, name, field, definition)}".rstrip())
        for field in sorted(properties.keys() - found.keys() - {"apiVersion", "kind"}):
            print(f"no number: {name} {field}", file=sys.stderr)
    out_path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
