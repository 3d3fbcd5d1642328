"""Classifiers of people's own texts and pictures: a plan of the training, the estimator, its report, the command."""

from .classifier import Classifier

__all__ = ["Classifier"]
