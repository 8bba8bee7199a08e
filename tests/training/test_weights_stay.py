"""Trained weights of the zoo stay what they were: other tests compare devices and schedules of one version with each
other, these hashes compare versions."""

from __future__ import annotations

import pytest

import tilegrad as tg
from tilegrad import zoo

# Two updates of the default recipe, as commit fb575ab gave them.
WEIGHTS = {
    "simplemlp": "cdf7afede989414b19448d68b208c3d908bdaf08f9f2ee79548e9fe469e99367",
    "mlp": "8e2c41c9c021dbb668e441899aa6764fd743b7c77491cee3d980c15547c2aaa8",
    "autoencoder": "49d18378ab2e4103667b098e2af6f75bd28a89ec8cdaa84c3168ec44aa97f691",
    "autoencoder_tiny": "193edcf8cc9bfb312b9cf4d169e7ead5919492df9b638ce8d6aa86b039055ca9",
    "dscnn": "3fb5ba6ee05e49a6a5ffdc5138797d096e41740534a0a4b29fb2deeb3e1e2268",
    "resnet8": "6381a448b74c72ab8cba33b8caa2a6883a4752b09c4a56bd6f79695d0a77aef9",
    "mobilenetv1": "14aeee331b3ff700ccfb5018d623ac80c45e9f32e4a543ade051d1ee83e931c2",
    "cct": "d42eaff86a91fcdcd28ac8cfaba8cc3a3210e49712577481cf1290ad1ff6b6b3",
    "cct_lora": "4d105576f26952313c61dedc722017d62b6c014462083dfeaefd1a66a46cd007",
}


def test_every_zoo_model_is_here() -> None:
    assert set(WEIGHTS) == set(zoo.names())


QUICK = ("simplemlp", "autoencoder_tiny")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in WEIGHTS]
)
def test_weights_are_those_of_earlier_versions(name: str) -> None:
    with tg.open_device("host") as device:
        run = tg.train(tg.compile(name, target="host"), device, steps=2, verify=False)
    assert run.as_json()["weights_sha256"] == WEIGHTS[name]
