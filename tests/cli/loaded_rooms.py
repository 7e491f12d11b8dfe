"""What most commands need, loaded once: the server imports it, and forks a process for each."""

# ruff: noqa: F401

import contextlib

import rich.progress
import rich.table
import sklearn.datasets

import flowhash.cli.app
import flowhash.cli.commands.demo
from flowhash.codes import assign_codes
from flowhash.data import ImageFolder, any_arrays, find_images, open_collection, open_data
from flowhash.encoder import Encoder, check_table
from flowhash.engines import copy, engine_exists, engine_faults, open_any
from flowhash.evaluate import evaluate, reproduce, write_evaluation
from flowhash.indexing import IndexRun, TableNotes
from flowhash.learn import preset, suggest, train, train_base
from flowhash.table import HashTable, folder_faults

with contextlib.suppress(ImportError):
    import ortools.graph.python.min_cost_flow
