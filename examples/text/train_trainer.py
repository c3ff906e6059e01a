"""The same task with BERT and the Trainer of Transformers (`toolkit image build --with transformers`).

toolkit run train_trainer.py --precision bf16
"""

from __future__ import annotations

import masked
import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments


class Hide:
    """Collator that makes a batch of pieces of text; the losses of Transformers ignore the label -100."""

    def __init__(self, rank: int) -> None:
        self.draw = torch.Generator().manual_seed(rank)

    def __call__(self, pieces: list[Tensor]) -> dict[str, Tensor]:
        seen, wanted = masked.hide(torch.stack(pieces), self.draw)
        return {"input_ids": seen, "labels": wanted.masked_fill(wanted == masked.PAD, -100)}


def main() -> None:
    args = masked.arguments().parse_args()
    torch.manual_seed(1)
    text = masked.read()
    shape = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
    config = BertConfig(
        vocab_size=text.vocabulary, **shape, max_position_embeddings=masked.LENGTH, pad_token_id=masked.PAD
    )
    settings = TrainingArguments(
        output_dir="trainer",
        max_steps=args.steps,
        learning_rate=args.lr,
        warmup_steps=max(1, args.steps // 10),
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=args.accumulate,
        max_grad_norm=args.clip,
        bf16=args.precision == "bf16",
        fp16=args.precision == "fp16",
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        logging_steps=50,
        report_to="none",
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
    )
    # Accelerate, which the Trainer uses, has set one thread for each processor.
    torch.set_num_threads(1)
    # Ranks connect by the variables that every launcher sets, and train on different pieces.
    model = BertForMaskedLM(config)
    hide = Hide(settings.process_index)
    trainer = Trainer(model, settings, train_dataset=list(text.train), data_collator=hide)
    done = trainer.train()
    if trainer.is_world_process_zero():
        device = next(model.parameters()).device
        model.eval()
        result = masked.accuracy(lambda words: model(input_ids=words).logits, text, device)
        rate = done.metrics["train_samples_per_second"]
        print(f"{result:.3f} of the hidden words found; {rate:.0f} pieces/s on {settings.world_size} ranks")


if __name__ == "__main__":
    main()
