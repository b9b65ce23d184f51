"""`edgekv doctor` tells what is here, and fails only when something is broken."""

import json
import sys

import pytest

from edgekv import download
from edgekv.cli import doctor
from edgekv.metal import attention
from edgekv.sessions import Store


def test_text(edgekv):
    result = edgekv("doctor")
    assert result.returncode == 0 and result.stderr == ""
    for word in ("versions", "mlx", "blas", "memory", "paths", "models", "problems", "none"):
        assert word in result.stdout


def test_json(edgekv, home):
    report = json.loads(edgekv("doctor", "--json").stdout)
    assert report["mlx"]["available"] is True and report["blas"]["milliseconds"] > 0
    assert report["paths"]["models"]["path"] == str(home / "data" / "models")
    assert report["paths"]["models"]["writable"] is True and report["problems"] == []
    assert report["models"]["package_client"].endswith("-m pip")
    if sys.platform == "linux":
        assert report["blas"]["name"].startswith("OpenBLAS")
    assert not home.exists()


def test_reference_blas_on_request_is_no_problem(edgekv):
    report = json.loads(edgekv("doctor", "--json", env={"EDGEKV_BLAS": "reference"}).stdout)
    assert report["problems"] == []


def test_broken_configuration_fails_but_is_still_reported(edgekv, home):
    home.mkdir()
    (home / "config.toml").write_text("windw = 1")
    result = edgekv("doctor", "--json")
    assert result.returncode == 1 and result.stderr == ""
    assert "did you mean window" in json.loads(result.stdout)["problems"][0]["what"]


def test_unwritable_data_folder_is_broken(edgekv, home):
    home.write_text("a file")
    result = edgekv("doctor")
    assert result.returncode == 1 and "cannot be written" in result.stdout


def test_kernels_are_not_used_without_metal(edgekv):
    report = json.loads(edgekv("doctor", "--json").stdout)
    if not report["mlx"]["metal"]:
        assert report["kernels"] == {"used": False, "reason": "there is no Metal here"}


@pytest.mark.parametrize("text", [False, True])
def test_a_wrong_wish_about_kernels_is_told(edgekv, text):
    result = edgekv("doctor", *([] if text else ["--json"]), env={"EDGEKV_KERNELS": "yes"})
    assert result.returncode == 1 and "EDGEKV_KERNELS must be on or off" in result.stdout


def test_kernels_that_came_out_wrong_are_told(monkeypatch):
    fault = attention.Choice(False, "attention is off by 2 from plain operations", fault=True)
    monkeypatch.setattr(attention, "choice", lambda: fault)
    found, problems = doctor._kernels()
    assert found == {"used": False, "reason": fault.reason}
    assert fault.reason in problems[0].what and not problems[0].broken


def test_missing_mlx_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    found, problems = doctor._backend()
    assert found == {"available": False} and problems[0].broken


@pytest.mark.parametrize(("free", "told"), [(10**9, True), (10**12, False)])
def test_little_room_is_told(monkeypatch, home, free, told):
    usage = doctor.shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    assert bool(doctor._paths()[1]) is told


def test_no_package_client_is_told(monkeypatch):
    monkeypatch.setattr(download.client, "CLIENTS", ())
    assert "install pip or uv" in doctor._models()[1][0].remedy


def test_the_store_is_looked_at_and_its_damage_named(edgekv, home):
    with Store(home / "data") as store:
        store.create("a")
    report = json.loads(edgekv("doctor", "--json").stdout)
    assert report["sessions"]["stored"] == 1
    assert 0 < report["sessions"]["used"] < report["sessions"]["quota"]
    path = home / "data" / "edgekv.db"
    path.write_bytes(path.read_bytes()[:5000])
    problems = json.loads(edgekv("doctor", "--json").stdout)["problems"]
    assert [one["remedy"] for one in problems] == ["run `edgekv sessions verify`"]
    assert "1 of 1 sessions restored" in edgekv("sessions", "verify").stdout
    assert edgekv("sessions", "verify").returncode == 0
    assert json.loads(edgekv("doctor", "--json").stdout)["sessions"]["stored"] == 1
