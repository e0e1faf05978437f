"""Boxes, text and lines as SVG, for the pictures of both programs."""
