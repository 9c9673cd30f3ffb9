"""Tests in this folder are collected only where a GPU can be used."""

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
