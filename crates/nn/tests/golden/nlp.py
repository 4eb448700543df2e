"""What PyTorch's losses are in the first 100 steps of the three programs after "NLP from scratch", from weights that are kept here.

Usage: python nlp.py (needs torch and safetensors; writes nlp.safetensors beside this file). The letters and words are those of
`text` in ../training/nlp.rs. Dropout is left out.
"""
import os
import torch, torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

STEPS, BATCH, LETTERS, LANGUAGES, HIDDEN, WORDS, LENGTH = 100, 8, 10, 4, 12, 11, 5


def text(step, i, place, size):
    return (step * 31 + i * 7 + place * 3 + step * i % 5) % size


def name(step, i):
    return torch.tensor([text(step, i, place, LETTERS) for place in range(2 + (step + i) % 5)])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.h2o = nn.RNN(LETTERS, HIDDEN), nn.Linear(HIDDEN, LANGUAGES)

    def loss(self, step):
        names = [F.one_hot(name(step, i), LETTERS).float() for i in range(BATCH)]
        _, hidden = self.rnn(nn.utils.rnn.pack_sequence(names, enforce_sorted=False))
        target = torch.tensor([(step + 3 * i) % LANGUAGES for i in range(BATCH)])
        return F.nll_loss(F.log_softmax(self.h2o(hidden[0]), 1), target)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        inputs = LANGUAGES + LETTERS + HIDDEN
        self.i2h, self.i2o = nn.Linear(inputs, HIDDEN), nn.Linear(inputs, LETTERS)
        self.o2o = nn.Linear(HIDDEN + LETTERS, LETTERS)

    def loss(self, step):
        letters, language = name(step, 0), F.one_hot(torch.tensor([step % LANGUAGES]), LANGUAGES).float()
        hidden, outputs = torch.zeros(1, HIDDEN), []
        for letter in F.one_hot(letters, LETTERS).float().split(1):
            x = torch.cat([language, letter, hidden], 1)
            hidden = torch.tanh(self.i2h(x))
            outputs.append(F.log_softmax(self.o2o(torch.cat([hidden, self.i2o(x)], 1)), 1))
        return F.nll_loss(torch.cat(outputs), torch.cat([letters[1:], letters[:1]]))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(WORDS, HIDDEN), nn.GRU(HIDDEN, HIDDEN, batch_first=True)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.u, self.v = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 1)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.attention = nn.Embedding(WORDS, HIDDEN), Attention()
        self.gru, self.out = nn.GRU(2 * HIDDEN, HIDDEN, batch_first=True), nn.Linear(HIDDEN, WORDS)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()

    def loss(self, step):
        words = lambda more: torch.tensor([[text(step + more, i, place, WORDS) for place in range(LENGTH)] for i in range(BATCH)])
        source, target = words(0), words(1)
        encoded, hidden = self.encoder.gru(self.encoder.embedding(source))
        padding, attention, outputs = source == 0, self.decoder.attention, []
        word = torch.zeros(BATCH, 1, dtype=torch.long)
        for i in range(LENGTH):
            scores = attention.v(torch.tanh(attention.w(hidden.transpose(0, 1)) + attention.u(encoded))).squeeze(2)
            weights = scores.masked_fill(padding, float("-inf")).unsqueeze(1).softmax(-1)
            x = torch.cat([self.decoder.embedding(word), weights @ encoded], 2)
            output, hidden = self.decoder.gru(x, hidden)
            outputs.append(self.decoder.out(output))
            word = target[:, i:i + 1]
        return F.nll_loss(F.log_softmax(torch.cat(outputs, 1), 2).flatten(0, 1), target.flatten())


torch.manual_seed(42)
torch.set_num_threads(1)
tensors = {}
for kind, model in (("classify", Classifier()), ("generate", Generator()), ("translate", Translator())):
    tensors |= {f"{kind}.weights.{key}": value.clone() for key, value in model.state_dict().items()}
    opt = torch.optim.SGD(model.parameters(), 0.15) if kind == "classify" else torch.optim.Adam(model.parameters(), 4e-3)
    losses = []
    for step in range(STEPS):
        loss = model.loss(step)
        loss.backward()
        if kind == "classify":
            nn.utils.clip_grad_norm_(model.parameters(), 3)
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    tensors[f"{kind}.losses"] = torch.tensor(losses)
    print(kind, losses[0], losses[-1])
save_file(tensors, os.path.join(os.path.dirname(os.path.abspath(__file__)), "nlp.safetensors"))
