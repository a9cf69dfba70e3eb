"""Which format the layers of a checkpoint really have: readings, evidence, contradictions."""

from __future__ import annotations

from conformance.detect.build import build
from conformance.detect.core import Detection, detect, load_layer
from conformance.detect.model import Reading, Report
from conformance.detect.source import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "Detection", "Reading", "Report", "build", "detect", "load_layer", "open_checkpoint"]
