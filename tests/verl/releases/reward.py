"""The reward of releases whose driver scores: how even the response is. Differs between samples."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **rest):
    return float(len(solution_str) % 3) + float(ground_truth) / 100
