"""The bus: where batches are published, and the in-process one behind the same door as a broker."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from passmuster.batch import Batch
from passmuster.spool import Spool

QUEUE_BATCHES = 1024  # a reader that is this far behind misses batches; what must miss none reads the spool


class Bus(Protocol):
    """Takes batches; when `publish` returns, the batch survives the process."""

    def publish(self, batch: Batch) -> None:
        """Hand over one batch. Raises SpoolFull when the disk begins to refuse."""


class Subscription:
    """The batches of some kinds as they are published, for one reader."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self.kinds = frozenset(kinds)
        self.missed: Counter[str] = Counter()  # batches that the reader was too slow for, by kind
        self._queue: queue.Queue[Batch] = queue.Queue(QUEUE_BATCHES)

    def get(self, timeout_seconds: float) -> Batch | None:
        """Return the next batch, or None when none came in time."""
        try:
            return self._queue.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def offer(self, batch: Batch) -> None:
        """Queue a batch if it is of the kinds asked for; never waits for the reader."""
        if batch.kind not in self.kinds:
            return
        try:
            self._queue.put_nowait(batch)
        except queue.Full:
            self.missed[batch.kind] += 1


class LocalBus:
    """The bus within one process: the spool first, then every subscription.

    A reader that must have every batch (the store) takes them from ``spool.read()`` and acknowledges them there; a
    subscription is for readers that want them now (detectors, pages).
    """

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._lock = threading.Lock()
        self._subscriptions: tuple[Subscription, ...] = ()

    def subscribe(self, kinds: Iterable[str]) -> Subscription:
        """Return a new subscription to these record kinds."""
        subscription = Subscription(kinds)
        with self._lock:
            self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop feeding a subscription; harmless when it is not one of ours."""
        with self._lock:
            self._subscriptions = tuple(s for s in self._subscriptions if s is not subscription)

    def publish(self, batch: Batch) -> None:
        """Spool a batch and offer it to every subscription, also when the disk refuses it."""
        try:
            self.spool.append(batch)
        finally:
            for subscription in self._subscriptions:
                subscription.offer(batch)
