"""The gate section of a profile: what a candidate must pass."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kdeploy.document import Model
from kdeploy.profile.values import Seconds, Share, Value


class Gate(Model):
    """What a candidate must pass, and how long each part may take."""

    prompts: Value | None = Field(default=None, description="prompts file (JSON); the built-in set when not given")
    thresholds: Value | None = Field(
        default=None, description="calibration file (YAML), whose figures are used where this section says nothing"
    )
    full: bool = Field(default=False, description="ask every prompt, not only those marked quick")
    company: Annotated[int, Field(ge=2, le=64)] = Field(
        default=4, description="how many different prompts are put into one batch"
    )
    agreement: Share = Field(
        default=1.0, description="least share of leading tokens that company, repetition and a reference must leave"
    )
    lossless: Share = Field(
        default=0.0, description="share of an answer's tokens that may differ from a prefill of the same text"
    )
    margin: Annotated[int | float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.1, description="differences up to this are near ties, nats; where the engine gives logprobs"
    )
    min_accept_length: Annotated[int | float, Field(ge=1, allow_inf_nan=False)] | None = Field(
        default=None, description="least mean accept length of speculative decoding, tokens a step"
    )
    acceptance: Share = Field(default=0.8, description="least share of the known-good release's accept length")
    speed: Share = Field(default=0.5, description="least share of the known-good release's tokens/s, on this host")
    first_answer_s: Seconds = Field(default=15, description="between green health and the first answer, seconds")
    request_s: Seconds = Field(default=60, description="no single answer may take longer, seconds")
    start_s: Seconds = Field(default=900, description="from launch to the first answer, seconds")
    probe_s: Seconds = Field(default=300, description="for all probes together, seconds")
    decide_s: Seconds = Field(default=120, description="how long the host waits for the verdict before it goes back")
    soak_s: Annotated[int | float, Field(ge=0, le=86_400)] = Field(
        default=10, description="watched after opening, before known-good, seconds"
    )
    soak_every_s: Annotated[int | float, Field(ge=1, le=3_600)] = Field(
        default=5, description="between two questions while it is watched, seconds"
    )
