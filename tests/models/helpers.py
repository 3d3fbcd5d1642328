"""What several files of this folder use to compare models."""

import torch
from transformers import Trainer, TrainingArguments

ATTENTIONS = [None, "eager", "sdpa"]


def attention_fields(attention):
    """Config fields of a gMLP, or of an aMLP with that implementation of attention."""
    return {} if attention is None else {"attention_size": 8, "attn_implementation": attention}


def both(layer, reference_layer):
    """Pairs of the weights and of the biases of two layers."""
    return [(layer.weight, reference_layer.weight), (layer.bias, reference_layer.bias)]


def copy_parameters(pairs):
    """Copies the second parameter of each pair into the first."""
    with torch.no_grad():
        for parameter, reference_parameter in pairs:
            assert parameter.shape == reference_parameter.shape
            parameter.copy_(reference_parameter)


def per_token(output, length):
    """The outputs for the first `length` tokens and for the whole sequence, as one flat vector per row."""
    parts = []
    for name, value in output.items():
        if name in ("last_hidden_state", "start_logits", "end_logits") or (name == "logits" and value.ndim == 3):
            parts.append(value[:, :length].flatten(1))
        elif name in ("logits", "pooler_output"):
            parts.append(value.flatten(1))
    return torch.cat(parts, dim=1)


# Config fields of a model that has the layers of g_mlp_pytorch.
G_MLP_PYTORCH = {
    "num_hidden_layers": 3,
    "intermediate_size": 64,
    "toeplitz": False,
    "type_vocab_size": 0,
    "mlm_transform": False,
    "tie_word_embeddings": False,
    "layer_norm_eps": 1e-5,
}


def copy_g_mlp_pytorch(tested, reference):
    """Copies all parameters of a model of g_mlp_pytorch."""
    pairs = [(tested.model.embeddings.word_embeddings.weight, reference.to_embed.weight)]
    for block, reference_layer in zip(tested.model.layers, reference.layers, strict=True):
        unit, reference_block = block.spatial_gating_unit, reference_layer.fn.fn.fn
        pairs += both(block.norm, reference_layer.fn.norm) + both(block.proj_in, reference_block.proj_in[0])
        pairs += both(unit.norm, reference_block.sgu.norm) + both(block.proj_out, reference_block.proj_out)
        pairs.append((unit.proj.weight, reference_block.sgu.weight[0]))
        pairs.append((unit.proj.bias, reference_block.sgu.bias[0]))
        if block.attention is not None:
            bias = block.attention.qkv_proj.bias
            pairs += [(block.attention.qkv_proj.weight, reference_block.attn.to_qkv.weight), (bias, 0 * bias)]
            pairs += both(block.attention.out_proj, reference_block.attn.to_out)
    pairs += both(tested.model.norm, reference.to_logits[0]) + both(tested.decoder, reference.to_logits[1])
    copy_parameters(pairs)
    assert len(pairs) == len(list(tested.parameters()))


def train(model, samples, folder, max_steps, logging_steps, gradient_accumulation_steps=1, eval_dataset=None):
    """Trains on the CPU; returns the trainer and the losses that it logged."""
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=16,
        gradient_accumulation_steps=gradient_accumulation_steps,
        max_steps=max_steps,
        learning_rate=1e-2,
        logging_steps=logging_steps,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=samples, eval_dataset=eval_dataset)
    trainer.train()
    return trainer, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
