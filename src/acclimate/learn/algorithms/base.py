"""An algorithm: a loss over a predictor. Whether the predictor adapts is not its business."""

from typing import Any, ClassVar

from acclimate.core.distributed import World
from acclimate.data.batches import Batch
from acclimate.learn.models import Output, Predictor
from acclimate.learn.objective import Objective


class Algorithm(Objective):
    """Subclasses define `Config`, a frozen dataclass of their settings, and `forward`."""

    Config: ClassVar[type[Any]]

    def __init__(
        self,
        predictor: Predictor,
        config: Any,
        *,
        domains: int,
        classes: int,
        world: World,
        seed: int,
    ) -> None:
        super().__init__()
        self.predictor, self.config, self.world, self.seed = predictor, config, world, seed
        self.domains, self.classes = domains, classes

    def predict(self, batch: Batch) -> Output:
        return self.adjusted(self.predictor(batch.x, batch.mu), batch)

    @staticmethod
    def adjusted(output: Output, batch: Batch) -> Output:
        """Prior-aware training: what is left to learn once a domain's label frequencies are known.

        The predictor itself then stands under the frequencies over all training domains.
        """
        if batch.shift is None:
            return output
        return output._replace(logits=output.logits + batch.shift)
