"""What was checked, written down: for each chapter a file that says what every statement stands on.

``kvspec check`` compares it with what runs and with the text; ``kvspec manifest --update`` writes it anew and shows
what has changed.
"""
