"""What `gradsieve submit` makes of its options, before a cluster sees it."""

import jsonschema
import pytest
from manifests import json_schema

from gradsieve_operator.client.submission import (
    MOST_BYTES,
    Submission,
    SubmissionError,
    config_map,
    job,
    job_name,
    products,
)
from gradsieve_operator.errors import SpecError
from gradsieve_operator.schema import job_definition

SPEC = job_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
VALIDATOR = jsonschema.Draft202012Validator(json_schema(SPEC))
NODES = ["NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-PCIE-40GB", "Tesla-T4", "NVIDIA-A100-SXM4-80GB"]


def submission(**asked):
    files = {"train.py": "print()\n"}
    return Submission(
        **{"name": "train", "namespace": "research", "program": "train.py", "files": files, "image": "i:1"}
        | asked
    )


def container(manifest):
    return manifest["spec"]["workerGroups"][0]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({}, id="the least"),
        pytest.param(
            {
                "workers": 4, "slots": 2, "min_workers": 2, "retries": 0, "gpu_products": ["Tesla-T4"],
                "resources": {"cpu": "2", "memory": "4Gi"}, "environment": {"A": "b"}, "backend": "Gloo",
                "compression": {"algorithm": "Laplace", "densityPermille": 10}, "arguments": ["--lr", "3"],
            },
            id="everything",
        ),
    ],
)  # fmt: skip
def test_the_job_is_one_that_the_api_server_takes(asked):
    VALIDATOR.validate(job(submission(**asked))["spec"])


def test_every_rank_runs_the_program_with_its_arguments_from_the_config_map():
    asked = submission(arguments=["--epochs", "3"])
    manifest = job(asked)
    pod = manifest["spec"]["workerGroups"][0]["template"]["spec"]
    assert container(manifest)["command"] == ["python3", "/workspace/train.py", "--epochs", "3"]
    (mount,) = container(manifest)["volumeMounts"]
    (volume,) = pod["volumes"]
    assert mount["name"] == volume["name"]
    assert mount["mountPath"] == "/workspace"
    assert volume["configMap"]["name"] == config_map(asked)["metadata"]["name"]
    assert config_map(asked)["data"] == {"train.py": "print()\n"}


def test_the_config_map_belongs_to_the_job_that_is_there():
    (owner,) = config_map(submission(), owner="u")["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "gradsieve.io/v1alpha1", "kind": "HorovodJob", "name": "train", "uid": "u"}
    assert "ownerReferences" not in config_map(submission())["metadata"]


def test_each_rank_gets_a_gpu_of_the_products_that_were_asked_for():
    manifest = job(submission(workers=3, slots=2, gpu_products=["Tesla-T4"]))
    assert container(manifest)["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert manifest["spec"]["scheduling"] == {"gpuProducts": ["Tesla-T4"]}


def test_memory_is_limited_to_what_is_requested_and_processor_time_is_not():
    resources = container(job(submission(resources={"cpu": "2", "memory": "4Gi"})))["resources"]
    assert resources == {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "4Gi"}}


def test_what_the_template_says_stays_and_the_program_is_added_to_it():
    template = {
        "metadata": {"labels": {"team": "vision"}},
        "spec": {
            "tolerations": [{"key": "gpu"}],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "containers": [
                {
                    "image": "theirs:1",
                    "env": [{"name": "A", "value": "old"}, {"name": "B", "value": "kept"}],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}], "args": ["x"],
                },
                {"name": "sidecar", "image": "s"},
            ],
        },
    }  # fmt: skip
    given = submission(image="", template=template, environment={"A": "new"})
    manifest = job(given)
    made = manifest["spec"]["workerGroups"][0]["template"]
    assert made["metadata"] == template["metadata"]
    assert made["spec"]["tolerations"] == [{"key": "gpu"}]
    assert [volume["name"] for volume in made["spec"]["volumes"]] == ["data", "program"]
    assert container(manifest)["image"] == "theirs:1"
    assert container(manifest)["env"] == [{"name": "B", "value": "kept"}, {"name": "A", "value": "new"}]
    assert "args" not in container(manifest)
    assert made["spec"]["containers"][1] == {"name": "sidecar", "image": "s"}
    assert template["spec"]["volumes"] == [{"name": "data", "emptyDir": {}}], "the caller's is not changed"
    VALIDATOR.validate(manifest["spec"])


@pytest.mark.parametrize(
    ("template", "field"),
    [
        pytest.param([], "template", id="a list"),
        pytest.param({"spec": {"containers": "x"}}, "template.spec.containers", id="containers"),
        pytest.param({"spec": {"containers": ["x"]}}, r"containers\[0\]", id="a container"),
        pytest.param({"spec": {"containers": [{"env": ["x"]}]}}, r"env\[0\]", id="a variable"),
        pytest.param({"spec": {"volumes": {}}}, "template.spec.volumes", id="volumes"),
    ],
)
def test_a_template_that_is_none_is_refused_with_the_field(template, field):
    with pytest.raises(SpecError, match=field):
        job(submission(template=template))


def test_without_an_image_it_is_said_where_one_can_be_named():
    with pytest.raises(SubmissionError, match="--image, GRADSIEVE_IMAGE or a --template"):
        job(submission(image=""))


def test_what_the_operator_would_refuse_is_refused_at_once_with_the_same_words():
    with pytest.raises(SpecError, match=r"minReplicas: is 3; it must be at most replicas, which is 2"):
        job(submission(workers=2, min_workers=3))
    with pytest.raises(SpecError, match="densit"):
        job(submission(compression={"algorithm": "FP16", "densityPermille": 10}))


def test_files_of_a_config_maps_size_go_and_a_byte_more_is_refused_with_advice():
    room = MOST_BYTES - len("train.py")
    assert config_map(submission(files={"train.py": "x" * room}))
    with pytest.raises(SubmissionError, match=r"1048577 bytes.*into the image or onto a volume"):
        config_map(submission(files={"train.py": "x" * (room + 1)}))
    with pytest.raises(SubmissionError, match="bytes"):
        config_map(submission(files={"train.py": "ü" * (room // 2 + 1)}))


def test_a_file_whose_name_cannot_be_a_key_is_named():
    with pytest.raises(SubmissionError, match="'my train.py'"):
        config_map(submission(files={"my train.py": ""}))


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("train.py", "train"),
        ("Train_ResNet50.v2.py", "train-resnet50-v2"),
        ("50epochs.py", "job-50epochs"),
        ("_.py", "job"),
        ("x" * 100 + ".py", "x" * 55),
    ],
)
def test_a_job_without_a_name_is_called_after_its_program(program, name):
    assert job_name(program) == name
    assert job(submission(name=job_name(program)))


def test_a_word_of_a_products_name_means_all_products_with_it_and_a_whole_name_means_itself():
    assert products(["a100"], NODES) == ["NVIDIA-A100-PCIE-40GB", "NVIDIA-A100-SXM4-80GB"]
    assert products(["NVIDIA-A100-SXM4-80GB"], NODES) == ["NVIDIA-A100-SXM4-80GB"]
    assert products(["T4", "A100"], NODES)[0] == "Tesla-T4", "in the order of preference"
    assert products([], NODES) == []


def test_a_gpu_that_no_node_has_is_refused_with_those_that_there_are():
    with pytest.raises(SubmissionError, match=r"'H100'.*NVIDIA-A100-PCIE-40GB.*Tesla-T4"):
        products(["H100"], NODES)
    with pytest.raises(SubmissionError, match="there are: none"):
        products(["A10"], [])
