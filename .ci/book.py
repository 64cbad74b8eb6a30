"""The site: a preprocessor for mdbook, and a check of the site that it built.

As a preprocessor it adds the pages that are outside docs/, so that links to them work on the site too.
`book.py check DIR` fails when a link or an anchor of the site in DIR has no target.
"""

import html.parser
import json
import os
import re
import sys
import urllib.parse

# Pages outside docs/, in the order of the site's last part.
OUTSIDE = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md", "LICENSE",
           "examples/slice-migration/README.md"]


def place(path):
    """Where a file of the repository is on the site, below docs/; None if it is not."""
    if path.startswith("docs/"):
        # mdbook itself names these pages index.
        return re.sub(r"README\.md$", "index.md", path[len("docs/"):])
    if path in OUTSIDE:
        return "project/" + path.replace("README.md", "about.md").replace("LICENSE", "LICENSE.md")
    return None


def relink(text, source):
    """Makes the links of a page of the repository right for its place on the site."""
    def link(found):
        target, mark, anchor = found.group(1).partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return found.group(0)
        there = place(os.path.normpath(os.path.join(os.path.dirname(source), target)))
        if there is None:
            sys.exit(f"{source}: {target} is not on the site: add it to OUTSIDE in .ci/book.py")
        return "](" + os.path.relpath(there, os.path.dirname(place(source)) or ".") + mark + anchor + ")"
    parts = re.split(r"(^```.*?^```)", text, flags=re.M | re.S)
    return "".join(part if at % 2 else re.sub(r"\]\(([^)\s]+)\)", link, part) for at, part in enumerate(parts))


def walk(items):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            if chapter["path"]:
                chapter["content"] = relink(chapter["content"], "docs/" + chapter["path"])
            walk(chapter["sub_items"])


def preprocess():
    context, book = json.load(sys.stdin)
    items = book["items"] if "items" in book else book["sections"]
    walk(items)
    items.append({"PartTitle": "Project"})
    for path in OUTSIDE:
        with open(os.path.join(context["root"], path), encoding="utf-8") as file:
            text = file.read()
        text = f"# License\n\n```text\n{text}```\n" if path == "LICENSE" else relink(text, path)
        items.append({"Chapter": {
            "name": text.split("\n", 1)[0].lstrip("# "), "content": text, "number": None, "sub_items": [],
            "path": place(path), "source_path": None, "parent_names": []}})
    json.dump(book, sys.stdout)


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.ids = [], set()
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.add(attributes.get("id"))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])


def check(root):
    pages = {os.path.normpath(os.path.join(at, name)): None
             for at, _, names in os.walk(root) for name in names if name.endswith(".html")}
    pages = {path: Page(path) for path in pages}
    dead = []
    for path, page in pages.items():
        # The first has the links of one page for printing, the second is shown at any address.
        if os.path.basename(path) in ("print.html", "404.html"):
            continue
        for link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(url.path))) if url.path else path
            if os.path.isdir(target):
                target = os.path.join(target, "index.html")
            anchor = urllib.parse.unquote(url.fragment)
            known = pages.get(target)
            if not os.path.exists(target) or (anchor and known and anchor not in known.ids):
                dead.append(f"{path}: {link}")
    if dead or len(pages) < 30:
        sys.exit("\n".join(["dead links of the site:"] + dead) if dead else f"only {len(pages)} pages in {root}")
    print(f"{len(pages)} pages, no dead link")


if sys.argv[1:2] == ["supports"]:
    sys.exit(0)
elif sys.argv[1:2] == ["check"]:
    check(sys.argv[2])
else:
    preprocess()
