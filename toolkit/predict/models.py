"""Well-known models: how many parameters, who says so, and how long a step took where that was published."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A training speed that was published for one GPU; ``seconds`` is one step with ``batch`` samples."""

    seconds: float
    batch: int
    where: str
    source: str


@dataclass(frozen=True)
class Model:
    """A model: ``parameters`` that get a gradient, and the page that counts them."""

    name: str
    title: str
    parameters: int
    source: str
    published: Published | None = None


_TORCHVISION = "https://docs.pytorch.org/vision/stable/models.html"
_BERT = "https://arxiv.org/abs/1810.04805"
_GPT2 = "https://github.com/openai/gpt-2"
# Synthetic data, fp32, batch as given, May 2017: images per second on 1 GPU of a DGX-1.
_TENSORFLOW = (
    "https://github.com/tensorflow/tensorflow/blob/5984ffefd320c5d71b801ee06079a51b91ea42c0/"
    "tensorflow/docs_src/performance/benchmarks.md"
)


def _p100(images_per_second: float, batch: int) -> Published:
    return Published(batch / images_per_second, batch, "one P100, fp32", _TENSORFLOW)


_ALL = (
    Model("alexnet", "AlexNet", 61_100_840, _TORCHVISION, _p100(2987, 512)),
    Model("resnet18", "ResNet-18", 11_689_512, _TORCHVISION),
    Model("resnet50", "ResNet-50", 25_557_032, _TORCHVISION, _p100(219, 64)),
    Model("resnet101", "ResNet-101", 44_549_160, _TORCHVISION),
    Model("resnet152", "ResNet-152", 60_192_808, _TORCHVISION, _p100(91.8, 64)),
    # 23.8 million without the auxiliary classifier, which only training uses.
    Model("inception-v3", "Inception V3", 27_161_264, _TORCHVISION, _p100(142, 64)),
    Model("vgg16", "VGG-16", 138_357_544, _TORCHVISION, _p100(154, 64)),
    Model("vit-b-16", "ViT-B/16", 86_567_656, _TORCHVISION),
    Model("vit-l-16", "ViT-L/16", 304_326_632, _TORCHVISION),
    Model("bert-base", "BERT base", 110_000_000, _BERT),
    Model("bert-large", "BERT large", 340_000_000, _BERT),
    # Counts as OpenAI corrected them: the paper's own (117M, 345M, 762M, 1542M) were wrong.
    Model("gpt2", "GPT-2", 124_000_000, _GPT2),
    Model("gpt2-medium", "GPT-2 medium", 355_000_000, _GPT2),
    Model("gpt2-large", "GPT-2 large", 774_000_000, _GPT2),
    Model("gpt2-xl", "GPT-2 XL", 1_558_000_000, _GPT2),
    Model("llama-2-7b", "Llama 2 7B", 6_738_415_616, "https://huggingface.co/meta-llama/Llama-2-7b-hf"),
)

MODELS = {model.name: model for model in _ALL}
