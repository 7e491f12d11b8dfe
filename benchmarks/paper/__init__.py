"""The paper's CIFAR-100 and ImageNet32: trainings, and pages of what they showed."""
