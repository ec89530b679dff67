from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vime_core.api.errors import DataError
from vime_core.data.readers import BadRows, read_rows, split_slice

TEN = [{"i": i} for i in range(10)]


@pytest.mark.parametrize(
    ("suffix", "expected"),
    [
        ("", list(range(10))),
        ("@[:]", list(range(10))),
        ("@[2:4]", [2, 3]),
        ("@[-2:]", [8, 9]),
        ("@[:-8]", [0, 1]),
        ("@[-3:-1]", [7, 8]),
        ("@[:0]", []),
        ("@[5:2]", []),
        ("@[8:100]", [8, 9]),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_slices(jsonl, tmp_path, kind, suffix, expected):
    path = jsonl(TEN)
    if kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        import pyarrow.parquet as parquet

        path = str(tmp_path / "rows.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(TEN), path)
    rows = list(read_rows(path + suffix, BadRows("error")))
    assert [row.values["i"] for row in rows] == expected
    assert [row.source for row in rows] == [f"{path}:{i + 1}" for i in expected]


@pytest.mark.parametrize("name", ["dáta set@1.jsonl", "a[1:2].jsonl", "x@[y].jsonl", "ü@home.jsonl"])
def test_odd_file_names(jsonl, name):
    path = jsonl(TEN, name=name)
    assert len(list(read_rows(path, BadRows("error")))) == 10
    assert [row.values["i"] for row in read_rows(f"{path}@[1:3]", BadRows("error"))] == [1, 2]


def test_only_a_trailing_slice_is_one():
    assert split_slice("a@[1:2]/b.jsonl") == ("a@[1:2]/b.jsonl", slice(None))
    assert split_slice("b.jsonl@[-5:]") == ("b.jsonl", slice(-5, None))


@pytest.mark.parametrize("text", ["x.csv", "x", "x.jsonl@[a:b]", "x.jsonl@[1]", "x.jsonl@[1:2:3]"])
def test_other_extensions_and_malformed_slices(text):
    with pytest.raises(DataError, match=r"\.jsonl and \.parquet"):
        read_rows(text, BadRows("error"))


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.jsonl: no such file"):
        read_rows(str(tmp_path / "nowhere.jsonl"), BadRows("error"))
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match="this is no file"):
        read_rows(str(tmp_path / "folder.jsonl"), BadRows("error"))


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ('{"i": 1', "not JSON"),
        ("[1, 2]", "must be a JSON object, this one is list"),
        ("[" * 100_000, "nested too deep"),
    ],
)
def test_bad_line_names_file_and_line(jsonl, line, cause):
    path = jsonl([{"i": 0}, "", line, {"i": 3}])
    with pytest.raises(DataError, match=rf"rows\.jsonl:3: .*{cause}.*--on-bad-row skip"):
        list(read_rows(path, BadRows("error")))
    bad = BadRows("skip")
    assert [row.values["i"] for row in read_rows(path, bad)] == [0, 3]
    assert bad.count == 1
    assert ":3: " in bad.summary()


def test_bytes_that_are_no_utf8(tmp_path):
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"i": "ok"}\n{"i": "\xe9"}\n')
    with pytest.raises(DataError, match=r"latin\.jsonl:2: not UTF-8"):
        list(read_rows(str(path), BadRows("error")))


def test_line_separators_inside_strings_are_no_lines(jsonl):
    path = jsonl(['{"i": "a\u2028b"}', {"i": 2}])
    assert [row.source[-2:] for row in read_rows(path, BadRows("error"))] == [":1", ":2"]


def test_parquet_that_is_none(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "x.parquet"
    path.write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"x\.parquet: cannot be read as parquet"):
        list(read_rows(str(path), BadRows("error")))


def test_pyarrow_is_imported_only_for_parquet():
    import subprocess

    code = "import vime_core.data.readers, sys; assert not {'pyarrow', 'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent, timeout=60)
