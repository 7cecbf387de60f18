"""The backbones that `acclimate list backbones` shows: ours, and those of timm that we recommend.

Parameters are those below the classifier. Licences are those of the pretrained weights, as timm
states them; read the licence itself before you ship a model. Tests compare all of it with timm.
"""

from typing import NamedTuple

HUB, APACHE = "timm's hub", "apache-2.0"


class Listing(NamedTuple):
    """What somebody who chooses a backbone wants to know."""

    parameters: float | None  # in millions; None: by the number of features
    size: int | None  # side of the images that the weights were made for; None: no images
    licence: str  # of the weights; "": there are none
    pretrained: str  # what has the weights
    note: str


LISTINGS = {
    "small-cnn": Listing(0.2, 32, "", "none", "images of 8 to 64 pixels, trains on a CPU"),
    "mlp": Listing(None, None, "", "none", "feature vectors instead of images"),
    "efficientnet-lite0": Listing(3.4, 224, APACHE, "acclimate[lite]", "the default above 64 px"),
    "resnet50-v1": Listing(23.5, 224, "the file's", "--weights FILE", "ResNet-50 of Keras"),
    "resnet50.tv_in1k": Listing(23.5, 224, "bsd-3-clause", HUB, "ResNet-50 as in DomainBed"),
    "convnext_tiny.fb_in22k": Listing(27.8, 224, APACHE, HUB, "ConvNeXt-T"),
    "convnext_base.fb_in22k": Listing(87.6, 224, APACHE, HUB, "ConvNeXt-B"),
    "vit_small_patch14_dinov2.lvd142m": Listing(22.1, 518, APACHE, HUB, "DINOv2 S/14"),
    "vit_base_patch14_dinov2.lvd142m": Listing(86.6, 518, APACHE, HUB, "DINOv2 B/14"),
    "vit_small_patch16_dinov3.lvd1689m": Listing(21.6, 256, "dinov3-license", HUB, "DINOv3 S/16"),
    "vit_base_patch16_dinov3.lvd1689m": Listing(85.6, 256, "dinov3-license", HUB, "DINOv3 B/16"),
    "vit_base_patch16_siglip_224.v2_webli": Listing(92.9, 224, APACHE, HUB, "SigLIP 2 B/16"),
    "vit_base_patch16_clip_quickgelu_224.openai": Listing(85.8, 224, APACHE, HUB, "CLIP B/16"),
}
