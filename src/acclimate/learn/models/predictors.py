"""Predictors: a backbone and a head, plain or conditioned on a domain embedding μ.

The adaptive predictor is F(x, μ) = F_mlp(F_ft(x), μ). F_ft is the backbone and a linear layer to
`width`, with no non-linearity behind it; F_mlp is a linear layer to `hidden`, ReLU and a linear
layer to the classes. Where μ enters is the condition:

- concat: F_mlp sees [z, μ] instead of z = F_ft(x), as published;
- film: F_mlp sees z (1 + G μ) + B μ;
- bias: A μ is added to the logits;
- low-rank: W (U h ∘ V μ) / √rank + A μ is added to them, with h the hidden layer: for one domain,
  another last layer, in which image and domain multiply.

G, B, A and W start at zero, so that training starts at the plain predictor.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from acclimate.config import ModelConfig
from acclimate.core.errors import ConfigError, unknown
from acclimate.learn.models.backbones import Backbone, Preprocess


class Output(NamedTuple):
    """`logits` [b, classes]; `hidden` [b, h], the penultimate layer, where penalties act."""

    logits: Tensor
    hidden: Tensor


class Predictor(nn.Module, ABC):
    """Scores images [b, 3, h, w] or features [b, f], in the domain whose embedding is `mu`."""

    backbone: Backbone

    def forward(self, x: Tensor, mu: Tensor | None = None) -> Output:
        return self.on_features(self.backbone(x), mu)

    @abstractmethod
    def on_features(self, features: Tensor, mu: Tensor | None = None) -> Output:
        """Forward pass from the backbone's features."""


@final
class Plain(Predictor):
    """One classifier for all domains: `mu` is ignored.

    Head "linear" is one layer on the backbone's features; head "mlp" is the conditioned
    predictor's head without μ, the control of equal capacity.
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        *,
        head: str = "linear",
        width: int = 1024,
        hidden: int = 1024,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if head not in ("linear", "mlp"):
            raise unknown(f"there is no head '{head}'", head, ["linear", "mlp"])
        self.backbone = backbone
        self.head: _LinearHead | _MlpHead | _PairHead
        if head == "linear":
            self.head = _LinearHead(backbone.features, classes, dropout)
        else:
            self.head = _MlpHead(backbone.features, classes, width, hidden, dropout)

    @classmethod
    def of(cls, backbone: Backbone, head: "_LinearHead | _MlpHead | _PairHead") -> "Plain":
        """A predictor of parts that are there, and that it shares."""
        # On the meta device nothing is initialised, so no random numbers are used up.
        with torch.device("meta"):
            plain = cls(backbone, classes=1)
        plain.head = head
        return plain

    def on_features(self, features: Tensor, mu: Tensor | None = None) -> Output:
        output: Output = self.head(features)
        return output


@final
class Conditioned(Predictor):
    """F(x, μ): one classifier per domain. `mu` is [b, mu_dim], or [mu_dim] for the whole batch."""

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        *,
        mu_dim: int,
        condition: str = "concat",
        width: int = 1024,
        hidden: int = 1024,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if condition not in _CONDITIONS:
            raise unknown(f"there is no condition '{condition}'", condition, _CONDITIONS)
        if mu_dim < 1:
            raise ConfigError(f"a domain embedding has 1 dimension or more, not {mu_dim}")
        self.mu_dim = mu_dim
        self.backbone = backbone
        kind = _CONDITIONS[condition]
        extra = mu_dim if kind.widens else 0
        self.head = _MlpHead(backbone.features, classes, width, hidden, dropout, extra=extra)
        self.condition = kind(mu_dim, width, hidden, classes)

    def on_features(self, features: Tensor, mu: Tensor | None = None) -> Output:
        if mu is None:
            raise ConfigError(
                "this predictor is conditioned on a domain embedding and was called without one; "
                f"pass mu [batch, {self.mu_dim}], or fold one in with fold(mu)"
            )
        z = self.head.project(features)
        mu = self._rows(mu, z.shape[0]).to(z.dtype)
        logits, hidden = self.head.classify(self.condition.inputs(z, mu))
        return Output(self.condition.logits(logits, hidden, mu), hidden)

    @torch.no_grad()
    def fold(self, mu: Tensor) -> Plain:
        """The classifier of one domain, `mu` [mu_dim]: a Plain whose output is forward(x, mu)'s.

        It shares the backbone, has tensors of its own in the head, and costs what a Plain of head
        "mlp" costs. The products are made in float64.
        """
        if mu.shape != (self.mu_dim,):
            raise ConfigError(f"fold takes one embedding [{self.mu_dim}], not {list(mu.shape)}")
        last, width = self.head.last, self.head.project.out_features
        sizes = (self.backbone.features, last.out_features, width, last.in_features)
        with torch.device("meta"):  # nothing is initialised, so no random numbers are used up
            head = _MlpHead(*sizes, self.head.dropout)
        # Via the CPU, because not every accelerator has float64.
        tensors = {
            name: value.to("cpu", torch.float64, copy=True)
            for name, value in self.head.state_dict().items()
        }
        self.condition.fold(tensors, mu.to("cpu", torch.float64))
        folded = {name: value.to(last.weight).contiguous() for name, value in tensors.items()}
        head.load_state_dict(folded, assign=True)
        plain = Plain.of(self.backbone, head.train(self.head.training))
        plain.training = self.training  # not train(): the backbone is shared and keeps its mode
        return plain

    def _rows(self, mu: Tensor, count: int) -> Tensor:
        """`mu` for each of `count` rows: [mu_dim] or [count, mu_dim] -> [count, mu_dim]."""
        if mu.shape not in ((self.mu_dim,), (count, self.mu_dim)):
            raise ConfigError(
                f"mu is {list(mu.shape)}; this predictor takes [{count}, {self.mu_dim}], one "
                f"embedding per row, or [{self.mu_dim}]"
            )
        return mu.expand(count, self.mu_dim)


@final
class Paired(Predictor):
    """The mean of the logits of a plain and a conditioned predictor, over one backbone.

    `conditioned` takes the features that the plain predictor's backbone, or what that one stands
    on, makes of images. `scale` is what the plain logits are multiplied by, so that both count.
    """

    def __init__(self, plain: Plain, conditioned: Conditioned, scale: float) -> None:
        super().__init__()
        self.backbone, self.plain = _apart(plain)
        self.second, self.scale = conditioned, scale
        self.mu_dim = conditioned.mu_dim

    def on_features(self, features: Tensor, mu: Tensor | None = None) -> Output:
        one, two = self.plain(features), self.second(features, mu)
        logits = (self.scale * one.logits + two.logits) / 2
        return Output(logits, torch.cat([one.hidden, two.hidden], 1))

    @torch.no_grad()
    def fold(self, mu: Tensor) -> Plain:
        """The classifier of one domain: one last layer on the hidden layers of both."""
        return Plain.of(self.backbone, _PairHead(self.plain, self.second.fold(mu), self.scale))


def _apart(plain: Plain) -> tuple[Backbone, Plain]:
    """The backbone that makes features, and the predictor on those features."""
    backbone, extractor = plain.backbone, plain.backbone.extractor
    if extractor is None and not takes_features(plain):
        return backbone, head_alone(plain)
    below = identity_backbone(backbone.mean.numel()).to(backbone.mean.device)
    if extractor is None:
        return below, plain
    below.put_on(extractor)  # it takes images, and the extractor's features as they come
    return below, Plain.of(backbone.alone(), plain.head)


def identity_backbone(width: int) -> Backbone:
    """A backbone that hands on feature vectors as they come."""
    return Backbone(nn.Identity(), width, Preprocess((0.0,) * width, (1.0,) * width, 0))


def head_alone(predictor: Plain) -> Plain:
    """The classifier on the features that its backbone makes of images; they share the head."""
    backbone = predictor.backbone
    return Plain.of(identity_backbone(backbone.features).to(backbone.mean.device), predictor.head)


def on_hidden(predictor: Plain) -> Plain:
    """The last layer alone, as a classifier of the hidden layer before it; it is shared."""
    last = predictor.head.last
    with torch.device("meta"):
        head = _LinearHead(last.in_features, last.out_features, 0.0)
    head.last = last
    return Plain.of(identity_backbone(last.in_features).to(last.weight.device), head).eval()


class _LinearHead(nn.Module):
    def __init__(self, features: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.last = nn.Linear(features, classes)

    def forward(self, features: Tensor) -> Output:
        """[b, features] -> logits [b, classes], hidden = the features."""
        dropped = F.dropout(features, self.dropout, self.training)
        return Output(self.last(dropped), features)


class _MlpHead(nn.Module):
    """F_ft's linear layer (`project`) and F_mlp (`first`, ReLU, `last`)."""

    def __init__(
        self,
        features: int,
        classes: int,
        width: int,
        hidden: int,
        dropout: float,
        *,
        extra: int = 0,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.project = nn.Linear(features, width)
        self.first = nn.Linear(width + extra, hidden)
        self.last = nn.Linear(hidden, classes)

    def forward(self, features: Tensor) -> Output:
        """[b, features] -> logits [b, classes], hidden [b, hidden]."""
        return self.classify(self.project(features))

    def classify(self, z: Tensor) -> Output:
        """[b, width + extra] -> logits [b, classes], hidden [b, hidden] before dropout."""
        hidden = F.relu(self.first(z))
        return Output(self.last(F.dropout(hidden, self.dropout, self.training)), hidden)


class _PairHead(nn.Module):
    """One last layer on the hidden layers of two predictors of features."""

    def __init__(self, one: Plain, two: Plain, scale: float) -> None:
        super().__init__()
        self.last: nn.Linear
        self.one, self.two = one, two
        first, second = one.head.last, two.head.last
        with torch.device("meta"):
            self.last = nn.Linear(first.in_features + second.in_features, first.out_features)
        weight = torch.cat([scale * first.weight.double(), second.weight.double()], 1) / 2
        bias = (scale * first.bias.double() + second.bias.double()) / 2
        whole = {"weight": weight.to(first.weight), "bias": bias.to(first.bias)}
        self.last.load_state_dict(whole, assign=True)

    def forward(self, features: Tensor) -> Output:
        hidden = torch.cat([self.one(features).hidden, self.two(features).hidden], 1)
        return Output(self.last(hidden), hidden)


class _Condition(nn.Module, ABC):
    """One way for μ to enter the head; what is not overridden passes through."""

    widens: ClassVar[bool] = False  # whether F_mlp sees mu_dim more numbers

    def __init__(self, mu_dim: int, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.width = width

    def inputs(self, z: Tensor, mu: Tensor) -> Tensor:
        """z [b, width], mu [b, mu_dim] -> what F_mlp sees."""
        return z

    def logits(self, logits: Tensor, hidden: Tensor, mu: Tensor) -> Tensor:
        """logits [b, classes], hidden [b, hidden], mu [b, mu_dim] -> [b, classes]."""
        return logits

    @abstractmethod
    def fold(self, head: dict[str, Tensor], mu: Tensor) -> None:
        """Change the tensors of the head so that they hold for the constant `mu` [mu_dim]."""


@final
class _Concat(_Condition):
    widens = True

    def inputs(self, z: Tensor, mu: Tensor) -> Tensor:
        return torch.cat([z, mu], dim=1)

    def fold(self, head: dict[str, Tensor], mu: Tensor) -> None:
        # W [z, μ] + c = W_z z + (c + W_μ μ)
        weight = head["first.weight"]
        head["first.weight"] = weight[:, : self.width]
        head["first.bias"] += weight[:, self.width :] @ mu


@final
class _Film(_Condition):
    def __init__(self, mu_dim: int, width: int, hidden: int, classes: int) -> None:
        super().__init__(mu_dim, width, hidden, classes)
        self.scale = _zero_linear(mu_dim, width)
        self.shift = _zero_linear(mu_dim, width)

    def inputs(self, z: Tensor, mu: Tensor) -> Tensor:
        modulated: Tensor = z * (1 + self.scale(mu)) + self.shift(mu)
        return modulated

    def fold(self, head: dict[str, Tensor], mu: Tensor) -> None:
        # s (P f + p) + B μ = (diag(s) P) f + (s p + B μ), with s = 1 + G μ
        scale = 1 + self.scale.weight.to(mu) @ mu
        head["project.weight"] *= scale[:, None]
        head["project.bias"] *= scale
        head["project.bias"] += self.shift.weight.to(mu) @ mu


@final
class _Bias(_Condition):
    def __init__(self, mu_dim: int, width: int, hidden: int, classes: int) -> None:
        super().__init__(mu_dim, width, hidden, classes)
        self.shift = _zero_linear(mu_dim, classes)

    def logits(self, logits: Tensor, hidden: Tensor, mu: Tensor) -> Tensor:
        shifted: Tensor = logits + self.shift(mu)
        return shifted

    def fold(self, head: dict[str, Tensor], mu: Tensor) -> None:
        head["last.bias"] += self.shift.weight.to(mu) @ mu


@final
class _LowRank(_Condition):
    rank = 128

    def __init__(self, mu_dim: int, width: int, hidden: int, classes: int) -> None:
        super().__init__(mu_dim, width, hidden, classes)
        self.of_image = nn.Linear(hidden, self.rank)
        self.of_domain = nn.Linear(mu_dim, self.rank, bias=False)
        self.out = _zero_linear(self.rank, classes)
        self.shift = _zero_linear(mu_dim, classes)

    def logits(self, logits: Tensor, hidden: Tensor, mu: Tensor) -> Tensor:
        both = self.of_image(hidden) * self.of_domain(mu) / self.rank**0.5
        changed: Tensor = logits + self.out(both) + self.shift(mu)
        return changed

    def fold(self, head: dict[str, Tensor], mu: Tensor) -> None:
        # W (s ∘ (U h + u)) = (W diag(s) U) h + W (s ∘ u), with s = V μ / √rank
        scaled = self.out.weight.to(mu) * (self.of_domain.weight.to(mu) @ mu) / self.rank**0.5
        head["last.weight"] += scaled @ self.of_image.weight.to(mu)
        head["last.bias"] += scaled @ self.of_image.bias.to(mu) + self.shift.weight.to(mu) @ mu


def _zero_linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.zeros_(layer.weight)
    return layer


_CONDITIONS: dict[str, type[_Condition]] = {
    "concat": _Concat,
    "film": _Film,
    "bias": _Bias,
    "low-rank": _LowRank,
}


def build_plain(backbone: Backbone, classes: int, settings: ModelConfig) -> Plain:
    """The plain predictor that a run's settings ask for."""
    return Plain(
        backbone,
        classes,
        head=settings.head,
        width=settings.width,
        hidden=settings.hidden,
        dropout=settings.dropout,
    )


def takes_features(predictor: Predictor) -> bool:
    """Whether it works on feature vectors instead of images."""
    return predictor.backbone.size == 0


class BatchFeatures:
    """A batch, and the features that backbones made of it: each sees it once."""

    def __init__(self, x: Tensor | None) -> None:
        self.x = x
        self._features: dict[Backbone, Tensor] = {}

    @classmethod
    def before(cls, backbone: Backbone, features: Tensor) -> "BatchFeatures":
        """A batch of which only the features of that backbone are left."""
        passed = cls(None)
        passed._features[backbone] = features
        return passed

    def features(self, backbone: Backbone) -> Tensor:
        if backbone not in self._features:
            below, x = backbone.extractor, self.x
            assert x is not None, "it passed another backbone alone"
            # A backbone on an extractor takes what that makes of images as well as images.
            over = below is not None and x.ndim > 2
            self._features[backbone] = backbone(self.features(below) if below and over else x)
        return self._features[backbone]

    def logits(
        self, predictor: Predictor, mu: Tensor | None = None, which: Tensor | None = None
    ) -> Tensor:
        """Of each input, or of those at the places `which` [n], any of them as often as it is
        there; `mu` goes with those."""
        features = self.features(predictor.backbone)
        return predictor.on_features(features if which is None else features[which], mu).logits


def classify_by_domain(heads: Sequence[nn.Module]) -> Callable[[Tensor, Tensor], Tensor]:
    """Features [b, f] and the number of each row's head [b] -> logits [b, C].

    Heads that differ in their biases alone, as μ and a label prior make them, are one head with a
    bias gathered for each row; others take their own rows.
    """
    first = heads[0]
    biases = {"first.bias", "last.bias"}
    if not isinstance(first, _LinearHead | _MlpHead) or not _agree(heads, biases):
        return lambda x, which: _one_by_one(heads, x, which)
    own = {
        name: torch.stack([head.get_parameter(name).detach() for head in heads])
        for name, _ in first.named_parameters()
        if name in biases
    }

    def classify(x: Tensor, which: Tensor) -> Tensor:
        if isinstance(first, _MlpHead):
            x = F.relu(F.linear(first.project(x), first.first.weight) + own["first.bias"][which])
        return F.linear(x, first.last.weight) + own["last.bias"][which]

    return classify


def _one_by_one(heads: Sequence[nn.Module], x: Tensor, which: Tensor) -> Tensor:
    rows = {int(number): (which == number).nonzero()[:, 0] for number in torch.unique(which)}
    logits = torch.cat([heads[number](x[own]).logits for number, own in rows.items()])
    return logits[torch.cat(list(rows.values())).argsort()]


def _agree(heads: Sequence[nn.Module], but: Collection[str]) -> bool:
    """Whether heads are of one kind, and equal in all tensors but those named."""
    one = {name: t for name, t in heads[0].named_parameters() if name not in but}

    def same(head: nn.Module) -> bool:
        other = dict(head.named_parameters())
        return all(t is other[name] or torch.equal(t, other[name]) for name, t in one.items())

    return all(type(head) is type(heads[0]) and same(head) for head in heads)
