"""Writes `metrics.json`: scikit-learn's metrics of the batches that `../suite/metrics.rs` makes.

    python metrics.py      # needs numpy and scikit-learn
"""

import json
import os

import numpy as np
from sklearn import metrics

BATCHES, CLASSES = (7, 64, 1, 129), 5
THRESHOLDS = 101


def noise(i, salt):
    """The same numbers as in the test: 32 bits of a hash of two integers, as a fraction."""
    x = (i * 2654435761 + salt * 40503 + 12345) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * 2246822519) & 0xFFFFFFFF
    x ^= x >> 13
    return x / 2**32


def samples(n):
    labels = np.array([int(noise(i, 1) * CLASSES) for i in range(n)])
    scores = np.array([[noise(i * CLASSES + j, 2) + 0.4 * (labels[i] == j) for j in range(CLASSES)] for i in range(n)])
    return scores, labels


def averages(function, labels, predictions):
    return {average: function(labels, predictions, average=average, zero_division=0) for average in ("micro", "macro", "weighted")}


def steps(probabilities):
    """Probabilities rounded down to a threshold, so that the exact area is that of the thresholds."""
    thresholds = (np.arange(THRESHOLDS) / np.float32(THRESHOLDS - 1)).astype(np.float32)
    return thresholds[np.searchsorted(thresholds, probabilities.astype(np.float32), side="right") - 1]


if __name__ == "__main__":
    scores, labels = samples(sum(BATCHES))
    predictions = scores.argmax(1)
    probabilities = steps(scores / scores.sum(1, keepdims=True))
    of_one = steps(np.clip(scores[:, 1], 0, 1))
    written = {
        "accuracy": metrics.accuracy_score(labels, predictions),
        "top_2": metrics.top_k_accuracy_score(labels, scores, k=2),
        "top_3": metrics.top_k_accuracy_score(labels, scores, k=3),
        "confusion": metrics.confusion_matrix(labels, predictions).flatten().tolist(),
        "precision": averages(metrics.precision_score, labels, predictions),
        "recall": averages(metrics.recall_score, labels, predictions),
        "f1": averages(metrics.f1_score, labels, predictions),
        "f1_of_classes": metrics.f1_score(labels, predictions, average=None).tolist(),
        "auroc_binary": metrics.roc_auc_score(labels == 1, of_one),
        "auroc_of_classes": [metrics.roc_auc_score(labels == c, probabilities[:, c]) for c in range(CLASSES)],
    }
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "metrics.json"), "w") as file:
        json.dump(written, file, indent=1)
        file.write("\n")
