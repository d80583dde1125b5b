"""Every example of the README and of docs/ runs and prints what the page says."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = sorted(
    page
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    if BLOCK.search(page.read_text())
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_of_a_page_run(page):
    text = page.read_text()
    names: dict[str, object] = {}  # blocks of one page follow each other
    for block in BLOCK.finditer(text):
        code = block.group(1)
        line = text.count("\n", 0, block.start(1))
        if ">>>" not in code:
            exec(compile("\n" * line + code, page, "exec"), names)
            continue
        report: list[str] = []
        example = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), line)
        runner = doctest.DocTestRunner(verbose=False)
        runner.run(example, out=report.append, clear_globs=False)
        names.update(example.globs)
        assert not report, "".join(report)
        assert runner.summarize(verbose=False).attempted > 0
