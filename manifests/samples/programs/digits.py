"""Handwritten digits with Horovod and gradsieve: the program of the sample jobs.

On one machine:   gradsieve run -np 4 -- python manifests/samples/programs/digits.py
On a cluster:     kubectl create configmap training-program --from-file=manifests/samples/programs
"""

from __future__ import annotations

import gzip
import os
import socket
import time
from importlib.util import find_spec
from pathlib import Path

import horovod.torch as hvd
import numpy as np
import torch
from horovod.common.elastic import ObjectState
from horovod.torch.elastic import run
from torch.nn.functional import cross_entropy

import gradsieve_hvd

EPOCHS = int(os.environ.get("EPOCHS", "16"))
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))  # a slower model, to watch a job for longer
LOG_STEPS = os.environ.get("LOG_STEPS") == "1"  # on every host, to see what happens when one is lost
HERE = f" on {socket.gethostname()}" if LOG_STEPS else ""
BATCH = 128  # of all ranks together: accuracy does not depend on their number
TEST_IMAGES = 360

started = time.monotonic()
hvd.init()
# scikit-learn brings the images; to import it would take every rank a second.
folder = Path(find_spec("sklearn").submodule_search_locations[0], "datasets", "data")
with gzip.open(folder / "digits.csv.gz", "rt") as file:
    table = torch.from_numpy(np.loadtxt(file, np.float32, delimiter=","))
table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
inputs, targets = table[:, :-1] / 16 - 0.5, table[:, -1].to(torch.int64)
test_inputs, train_inputs = inputs[:TEST_IMAGES], inputs[TEST_IMAGES:]
test_targets, train_targets = targets[:TEST_IMAGES], targets[TEST_IMAGES:]


def train(elastic: ObjectState | None = None) -> None:
    """Train from the last commit to the end."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 640), torch.nn.ReLU(),
        torch.nn.Linear(640, 640), torch.nn.ReLU(),
        torch.nn.Linear(640, 10),
    )  # fmt: skip
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
        named_parameters=model.named_parameters(),
        # What the HorovodJob says; without a job, or where it says nothing, this.
        compression=gradsieve_hvd.job_compression(gradsieve_hvd.Compression.laplace(density=0.01)),
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    state = gradsieve_hvd.TrainingState(model, optimizer, every=10)
    first = state.restore()
    if hvd.rank() == 0 or LOG_STEPS:
        seconds = time.monotonic() - started
        print(
            f"{hvd.size()} ranks go on from step {first}, {seconds:.1f} s after the start{HERE}", flush=True
        )
    steps_per_epoch = len(train_targets) // BATCH
    for step in range(first, EPOCHS * steps_per_epoch):
        epoch, position = divmod(step, steps_per_epoch)
        shuffled = torch.randperm(len(train_targets), generator=torch.Generator().manual_seed(epoch))
        batch = shuffled[position * BATCH : (position + 1) * BATCH][hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        loss = cross_entropy(model(train_inputs[batch]), train_targets[batch])
        loss.backward()
        optimizer.step()
        telling = step == first or position == steps_per_epoch - 1
        if LOG_STEPS or (hvd.rank() == 0 and telling):
            print(f"step {step + 1} loss {loss.item():.4f}{HERE}", flush=True)
        state.commit(step + 1)
        if elastic is not None:
            elastic.check_host_updates()
        time.sleep(STEP_SECONDS)
    if hvd.rank() == 0:
        with torch.no_grad():
            right = (model(test_inputs).argmax(dim=1) == test_targets).float().mean().item()
        print(f"accuracy {100 * right:.2f} %", flush=True)
    state.discard()


if os.environ.get("HOROVOD_ELASTIC"):  # Gloo: when ranks are lost, the others go on in this process
    run(train)(ObjectState(bcast_object=hvd.broadcast_object, get_rank=hvd.rank))
else:
    train()
