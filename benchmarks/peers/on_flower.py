"""Flower: its simulation with the message API; one message to every node is one step."""

from __future__ import annotations

import argparse
import os
import time
from importlib.metadata import version
from typing import Any

import problem
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from torch.nn.utils import parameters_to_vector, vector_to_parameters

TIMEOUT = 60.0  # seconds for one step
LOOK = 0.001  # seconds between two looks for answers

client_app, server_app = ClientApp(), ServerApp()
parties: dict[int, problem.Party] = {}  # of this process; what they have learnt travels in the node's context


def pack(data: bytes) -> RecordDict:
    """Return these bytes as the content of a message."""
    return RecordDict({"block": ConfigRecord({"data": data})})


def unpack(message: Message) -> bytes:
    """Return the bytes that a message carries."""
    data: Any = message.content.config_records["block"]["data"]
    return bytes(data)


def restore(party: problem.Party, state: RecordDict) -> None:
    """Bring a party to where its node was: any process may answer for any node."""
    if "party" in state:
        saved: Any = state.config_records["party"]
        party.step = saved["step"]
        parameters = torch.frombuffer(bytearray(saved["parameters"]), dtype=torch.float32)
        vector_to_parameters(parameters, party.model.parameters())


def keep(party: problem.Party, state: RecordDict) -> None:
    """Leave in the node's context what the next message needs."""
    parameters = parameters_to_vector(party.model.parameters()).detach().numpy().tobytes()
    state["party"] = ConfigRecord({"step": party.step, "parameters": parameters})


@client_app.query()
def answer(message: Message, context: Context) -> Message:
    """Learn and report."""
    index = int(context.node_config["partition-id"])
    if index not in parties:
        parties[index] = problem.Party(index)
    party, cotangent = parties[index], unpack(message)
    restore(party, context.state)
    if cotangent:
        party.forward()
    reply = Message(pack(party.answer(cotangent)), reply_to=message)
    keep(party, context.state)
    return reply


def size(message: Message) -> int:
    """Return the bytes of a message as Flower's network would carry it."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


@server_app.main()
def train(grid: Grid, context: Context) -> None:
    """Train, and print one line."""
    options = problem.options(argparse.ArgumentParser(description=__doc__))
    until = time.monotonic() + TIMEOUT
    while len(nodes := sorted(grid.get_node_ids())) < problem.PARTIES and time.monotonic() < until:
        time.sleep(LOOK)
    sent = {"up": 0, "down": 0}

    def exchange(cotangents: list[bytes]) -> list[bytes]:
        messages = [Message(pack(c), node, "query") for c, node in zip(cotangents, nodes, strict=True)]
        # send_and_receive looks for answers every 0.1 s; what it is made of may be called more often.
        waiting, answers, until = set(grid.push_messages(messages)), {}, time.monotonic() + TIMEOUT
        while waiting and time.monotonic() < until:
            for reply in grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                answers[reply.metadata.src_node_id] = reply
            time.sleep(LOOK)
        if not sent["up"] and cotangents[0]:  # all steps are alike
            sent["up"], sent["down"] = sum(map(size, answers.values())), sum(map(size, messages))
        return [unpack(answers[node]) for node in nodes]

    samples, losses = problem.train(exchange, options.warm, options.steps)
    mode = "simulation, one message a step, a worker for each core"
    print(problem.report("Flower", version("flwr"), mode, samples, losses, sent, problem.deviation(losses)), flush=True)


def main() -> None:
    """Measure, and print one line."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, problem.PARTIES, backend_config=resources)


if __name__ == "__main__":
    import on_flower  # the simulation's processes import this file by its name

    on_flower.main()
