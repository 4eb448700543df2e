"""How long PyTorch takes for an epoch of `classify_names`: the same names, model, batches and steps.

Usage: python reference.py runs/classify_names/names [THREADS]. Needs torch, and the names that `classify_names` wrote.
"""
import glob, os, random, string, sys, time
import torch, torch.nn.functional as F
from torch import nn

torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 2)
LETTERS = string.ascii_letters + " .,;'-"
PLACES = {letter: place for place, letter in enumerate(LETTERS)}


class CharRNN(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.rnn, self.h2o = nn.RNN(input_size, hidden_size), nn.Linear(hidden_size, output_size)

    def forward(self, names):
        _, hidden = self.rnn(names)
        return F.log_softmax(self.h2o(hidden[0]), dim=1)


def tensor(name):
    return F.one_hot(torch.tensor([PLACES.get(letter, len(LETTERS)) for letter in name]), len(LETTERS) + 1).float()


def loss_of(model, names):
    x = nn.utils.rnn.pack_sequence([name for name, _ in names], enforce_sorted=False)
    return F.nll_loss(model(x), torch.tensor([language for _, language in names]))


def epoch(model, opt, train):
    random.shuffle(train)
    total = 0.0
    for start in range(0, len(train), 64):
        loss = loss_of(model, train[start:start + 64])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 3)
        opt.step()
        opt.zero_grad()
        total += loss.item()
    return total / -(-len(train) // 64)


files = sorted(glob.glob(os.path.join(sys.argv[1], "*.txt")))
data = [(tensor(line), language) for language, path in enumerate(files) for line in open(path).read().splitlines()]
random.seed(42)
torch.manual_seed(42)
random.shuffle(data)
train = data[:len(data) * 85 // 100]
model = CharRNN(len(LETTERS) + 1, 128, len(files))
opt = torch.optim.SGD(model.parameters(), lr=0.15)
epoch(model, opt, train)  # warms up
start, cpu_start = time.perf_counter(), time.process_time()
for _ in range(26):
    loss = epoch(model, opt, train)
wall, cpu = time.perf_counter() - start, time.process_time() - cpu_start
print(f"{1e3 * wall / 26:.1f} ms an epoch, {1e3 * cpu / 26:.1f} ms of CPU time, loss {loss:.4f}")
