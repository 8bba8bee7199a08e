"""Weights of the zoo after one update, which no change of schedules, plans, listings or C may change.

Whether they are right is for the references to say (tests/training, tests/verify). These are of the program before it
had listings (59368a3~1), on the host; a change of numerics that is meant changes them here, and says why.
"""

from __future__ import annotations

import pytest

from tests.support.command_line import CommandLine
from tilegrad import zoo

WEIGHTS = {
    "simplemlp": "dc0e71b5759b0a37830491673121ede48550f2f8f93ea398fb6d5d739339470f",
    "mlp": "f662989f54385446e9f7c99482219d720555d717247ffd69560bcd5667f3b3d1",
    "autoencoder_tiny": "b99bf0ad463883b1db34c993163103c587cc444dca6ad3f01fb05c24827c7a67",
    "autoencoder": "dad23465311f7a4268289f72f5855b056d9aa5606a5654d971c27b61b2210167",
    "dscnn": "b80ac7e542c05fe2cdde5c17d74ca6242b4cdf80da796a6d215b6e9b58fd136d",
    "resnet8": "3bd4e384433a7e65852f76ebfdff139630fbe021d1332fcce00c214d50f2a22b",
    "cct_lora": "dcbcf6c16770030139de19eae4a391e18f8f613f7870376770801161f72ea0e4",
    "cct": "f25fdd54dee006272aab73fa837141261a7e48a53544a93b9552319b165e89e4",
    "mobilenetv1": "738db157320100496e743e2b3680e5fc46df0843fb4d5a1f8e9761f246f700a4",
}
QUICK = ("simplemlp", "autoencoder_tiny")


def test_every_model_is_held_to_it() -> None:
    assert WEIGHTS.keys() == set(zoo.names())


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in WEIGHTS]
)
def test_weights_are_what_they_were(tilegrad: CommandLine, name: str) -> None:
    run = tilegrad("train", name, "--device", "host", "--steps", 1, "--no-verify", "--json", "-").json
    assert run["weights_sha256"] == WEIGHTS[name]
