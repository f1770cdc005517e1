"""The glossary's words: what it replaces has gone from the pages, and from names."""

from __future__ import annotations

import ast
import re

from tests.unit.docs import words

GLOSSARY = words.REPOSITORY / "docs" / "reference" / "glossary.md"


def test_each_replaced_word_has_a_pattern() -> None:
    table = GLOSSARY.read_text().partition("| say | not | meaning |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| [^|]*\|$", table, re.MULTILINE)
    told = {word for row in rows for word in row.split(", ")}
    assert told == set(words.PROSE)
    assert set(words.NAMES) <= told


def test_the_pages_have_next_to_none_of_them() -> None:
    found = [sentence for sentences in words.in_prose().values() for sentence in sentences]
    assert len(found) < words.PROSE_LIMIT, "\n".join(found)


def test_no_sentence_that_people_see_has_one_and_code_has_fewer() -> None:
    seen, read = words.in_code()
    assert seen == []
    assert len(read) <= words.CODE_LIMIT, "\n".join(read)


def test_docstrings_are_told_from_other_strings() -> None:
    module = ast.parse('"""A."""\nB = "b"\n"""C."""\ndef d():\n    raise E(f"goes {on} anew")\n')
    assert words.texts(module) == (["A.", "C."], ["b", "goes ", " anew"])


def test_names_have_none_of_them_but_those_that_stay() -> None:
    found, stay = words.in_names(), words.allowed()
    more = {
        "names": found["names"] - stay["names"].keys(),
        "within": found["within"] - stay["names"].keys() - stay["within"].keys(),
    }
    assert not any(more.values()), f"{more}: docs/reference/glossary.md has words to use instead"


def test_what_is_listed_as_staying_is_there() -> None:
    for where, names in words.allowed().items():
        assert names.keys() <= words.in_names()[where]


def test_a_word_in_code_or_in_a_link_is_none() -> None:
    assert words.prose("`anew`, [go on](anew.md), a\nb\n```\nanew\n```\n") == "`, [go on], a b "


def test_names_are_found_wherever_they_are_given() -> None:
    source = "GO_ON = 1\nclass TakenOver:\n    left: int\n    def begin_anew(self): ...\n"
    found = [words.snake(name) for name in words.named("arrived", ast.parse(source))]
    assert sorted(found) == ["arrived", "begin_anew", "go_on", "left", "taken_over"]


def test_members_of_enumerations_and_attributes_are_names() -> None:
    source = "class A(Enum):\n    ANEW = 1\ndef f(self):\n    self.going = b = 1\n"
    assert {*words.named("x", ast.parse(source))} == {"x", "A", "ANEW", "f", "going"}


def test_parameters_and_what_is_assigned_in_a_function_are_seen() -> None:
    source = (
        "def f(goes_on, *, anew=1, **kept):\n"
        "    going = 1\n"
        "    if gone_on := 1: pass\n"
        "    for left, (below, b) in c: pass\n"
        "    with d as arrived: pass\n"
        "    lambda doomed: e\n"
    )
    found = {*words.within(ast.parse(source))}
    assert found - {"b"} == {
        *("goes_on", "anew", "kept", "going", "gone_on", "left", "below", "arrived", "doomed")
    }
