"""Copies the kubectl and helm binaries out of the installed lambda-layer-kubectl package into the directory given.

The package holds a Node package (.tgz), which holds layer.zip, which holds kubectl/kubectl and helm/helm.
"""

import importlib.metadata
import io
import os
import sys
import tarfile
import zipfile


def main(directory):
    files = [
        file
        for package in importlib.metadata.distributions()
        if "lambda-layer-kubectl" in package.metadata["Name"].replace("_", "-")
        for file in package.files or []
        if file.name.endswith(".tgz")
    ]
    if not files:
        sys.exit("no installed package carries kubectl and helm")
    with tarfile.open(files[0].locate()) as node_package:
        layer = zipfile.ZipFile(io.BytesIO(node_package.extractfile("package/lib/layer.zip").read()))
    for tool in ("kubectl", "helm"):
        path = os.path.join(directory, tool)
        with open(path, "wb") as file:
            file.write(layer.read(f"{tool}/{tool}"))
        os.chmod(path, 0o755)


main(sys.argv[1])
