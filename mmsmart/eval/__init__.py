"""Evaluation: data sets, official metrics, prompts."""
