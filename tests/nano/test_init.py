"""How nano's parts start: as a scaled copy, the same every time, and by a name that nano makes known."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from cascade_train.errors import CascadeError
from cascade_train.models.starts import initial
from cascade_train.nano import init, widths


def test_stage_c_starts_as_a_scaled_copy():
    """ε̂ = √(1−ᾱ)·x to a few 1e-4 at every time, whatever the text says; one Adam step keeps it close."""
    from cascade_train.diffusion.schedule import alpha_sigma, logsnr, time_input

    network = initial("stage_c", "nano", "", 0, None)
    torch.manual_seed(0)
    log_snr = logsnr(torch.linspace(0.01, 1, 24))
    x = torch.randn(24, 16, 8, 8)
    condition = {
        "clip_text_pooled": torch.randn(24, 1, 128),
        "clip_text": torch.randn(24, 32, 128),
        "clip_img": torch.zeros(24, 1, 32),
    }

    def error() -> float:
        out = network(x, time_input(log_snr), **condition, return_dict=False)[0]
        return float((out - alpha_sigma(log_snr)[1].view(-1, 1, 1, 1) * x).square().mean().sqrt())

    with torch.no_grad():
        assert error() < 5e-4
    out = network(x, time_input(log_snr), **condition, return_dict=False)[0]
    out.square().mean().backward()
    with torch.no_grad():
        for value in network.parameters():
            if value.grad is not None:
                value.sub_(1e-4 * value.grad.sign())
        assert error() < 0.1


def test_initialisation_is_a_function_of_its_arguments():
    def weights(**kwargs):
        given: dict[str, Any] = {
            "part": "stage_c",
            "init": "nano",
            "config": "quick",
            "seed": 0,
            "models": None,
        } | kwargs
        return torch.cat([value.flatten() for value in initial(**given).parameters()])

    torch.manual_seed(1)
    first = weights()
    torch.manual_seed(2)
    after = torch.rand(1)
    torch.manual_seed(2)
    assert torch.equal(first, weights()) and torch.equal(after, torch.rand(1))
    assert not torch.equal(first, weights(seed=1)) and not torch.equal(first, weights(init="random"))
    with pytest.raises(CascadeError, match="no initialisation 'best'"):
        weights(init="best")
    with pytest.raises(CascadeError, match="no configuration"):
        weights(config="{")
    assert widths.config("stage_c")["block_out_channels"] == [80, 160]


def test_the_name_is_known_once_nano_is_there() -> None:
    assert initial("previewer", init.NAME, "quick", 0, None).widths == tuple(
        widths.SMALLER["previewer"]["widths"]
    )
    code = (
        "import sys\n"
        "from cascade_train.errors import CascadeError\n"
        "from cascade_train.models.starts import initial\n"
        "import cascade_train.training.run, cascade_train.sampling.pipeline, cascade_train.jobs.train\n"
        "assert not [name for name in sys.modules if name.startswith('cascade_train.nano')]\n"
        "try:\n    initial('stage_c', 'nano', '', 0, None)\n"
        "except CascadeError as error:\n    assert \"'nano'. One of random\" in str(error), error\n"
        "else:\n    raise AssertionError\n"
        "from cascade_train.nano.recipe import INIT\n"
        "initial('previewer', INIT, 'quick', 0, None)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
