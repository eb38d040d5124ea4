"""Eras on Kafka."""
