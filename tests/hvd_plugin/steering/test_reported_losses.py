"""A loss that the training loop tells becomes part of rank 0's samples, if it is one."""

from __future__ import annotations

import json

import pytest
import torch

import gradsieve_hvd
from gradsieve.errors import ConfigurationError
from gradsieve.policies import Steering
from gradsieve_hvd.control.fields import Fields
from gradsieve_hvd.control.plan_exchange import PlanExchange
from gradsieve_hvd.control.reported import _reported
from gradsieve_hvd.control.reporter import Reporter
from gradsieve_hvd.control.telemetry import Telemetry
from gradsieve_hvd.engine.statistics import StepStatistics
from gradsieve_hvd.optimizer.exchange_thread import ExchangeThread
from gradsieve_hvd.optimizer.messages import ThreadMessages
from gradsieve_hvd.transport.threads import run_ranks


@pytest.fixture(autouse=True)
def nothing_reported():
    yield
    _reported.loss = None


def sample() -> Telemetry:
    """Return what the coordinator reads of a sample of a job with one rank."""

    def work(transport):
        reporter = Reporter(None)
        exchange = PlanExchange("one", ThreadMessages(ExchangeThread(transport, 20.0)), Steering(), reporter)
        for step in (1, 2):
            exchange.after_step(step, StepStatistics())
        return reporter.sample

    (found,) = run_ranks(1, work, 20.0)
    return Telemetry.read(Fields.parse(json.dumps(found), "telemetry"))


@pytest.mark.parametrize("loss", [0.25, torch.tensor(0.25), torch.tensor([0.25], requires_grad=True)])
def test_a_number_or_a_tensor_of_one_element_is_in_the_next_sample(loss):
    gradsieve_hvd.report(loss=loss)
    assert sample().numbers["loss"] == 0.25


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -1e300])
def test_what_is_not_finite_or_absurd_is_left_out_and_the_sample_still_arrives(loss):
    gradsieve_hvd.report(loss=1.0)
    gradsieve_hvd.report(loss=loss)
    found = sample()
    assert "loss" not in found.numbers
    assert found.step == 2


def test_the_last_sample_of_a_training_has_its_last_loss():
    reporter = Reporter(None)
    reporter.sample, reporter.step = {"step": 1, "loss": 3.0}, 2
    gradsieve_hvd.report(loss=0.5)
    reporter._take_last_step()
    assert (reporter.sample["step"], reporter.sample["loss"]) == (2, 0.5)
    reporter.step = 3
    gradsieve_hvd.report(loss=float("nan"))
    reporter._take_last_step()
    assert "loss" not in reporter.sample


@pytest.mark.parametrize("loss", ["low", "1.0", True, None, torch.zeros(2), [1.0], 10**400])
def test_what_is_no_number_is_refused(loss):
    gradsieve_hvd.report(loss=2.0)
    with pytest.raises(ConfigurationError, match="expected a number or a tensor of one element"):
        gradsieve_hvd.report(loss=loss)
    assert sample().numbers["loss"] == 2.0
