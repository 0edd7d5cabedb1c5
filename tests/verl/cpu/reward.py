"""The reward of the test runs: how many letters are vowels. Differs between samples of any model."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **rest):
    return sum(letter in "aeiou" for letter in solution_str.lower()) / max(1, len(solution_str))
