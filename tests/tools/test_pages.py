"""The pages that people read first: their length, their links, their picture."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.quick

TOP = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "SECURITY.md", "CONTRIBUTING.md", *(str(p.relative_to(TOP)) for p in sorted((TOP / "docs").rglob("*.md")))]


def anchors(text):
    """The names by which a page's headings can be linked to."""
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_the_front_page_is_short():
    """1500 words, tables and commands included."""
    assert len((TOP / "README.md").read_text(encoding="utf-8").split()) <= 1500


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    """To files that are there, and headings that they have."""
    text = re.sub(r"```.*?```", "", (TOP / page).read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (TOP / page).parent / name if name else TOP / page
        assert file.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), f"{page}: {target}"


def test_the_picture_is_what_the_record_says():
    """Drawn again it is the same; it is whole, and says in words what it shows."""
    subprocess.run([sys.executable, TOP / "benches/picture.py", "--check"], check=True)
    root = ElementTree.parse(TOP / "docs/results.svg").getroot()
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert root.find("{http://www.w3.org/2000/svg}title").text
    assert sum(text.startswith("TCP ") for text in texts) == sum(text.startswith("SDP ") for text in texts) == 6
