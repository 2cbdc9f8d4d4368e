"""Tasks with known answers: a file each for what is asked and how an answer is judged."""
