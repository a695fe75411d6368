"""What importing an installed package tells about a script; refuses to look at whether it is installed."""

from __future__ import annotations

_FRAMEWORKS = """
    accelerate axolotl catalyst classy_vision colossalai composer deepspeed detectron2 determined espnet espnet2
    fairscale fairseq fairseq2 fastai horovod ignite keras lightning lightning_fabric llamafactory megatron mmcv
    mmdet mmengine mmseg monai nanotron nemo olmo_core pytorch_lightning ray speechbrain torch_xla torchtitan
    torchtune trl ultralytics unsloth
"""
_HARMLESS = """
    Bio PIL absl addict albumentations attr attrs av bitsandbytes boto3 botocore click cloudpickle colorama comet_ml
    configargparse cv2 datasets ddplaunch decord diffusers dill dotenv draccus easydict editdistance einops evaluate
    fire flash_attn fsspec ftfy future fvcore gdown h5py huggingface_hub hypothesis imageio iopath jiwer joblib
    jsonargparse kornia librosa lmdb loguru matplotlib mlflow neptune netCDF4 networkx nltk numba numpy omegaconf
    packaging pandas peft plotly polars prettytable psutil pyarrow pycocotools pydantic pynvml pyrallis pytest rdkit
    regex requests rich rich_click rouge_score s3fs sacrebleu safetensors scipy seaborn sentence_transformers
    sentencepiece setproctitle shapely simple_parsing six skimage sklearn soundfile spacy tabulate tensorboard
    tensorboardX termcolor thop tiktoken timm tokenizers toml tomli torch torch_geometric torchaudio torchdata
    torchmetrics torchtext torchvision tqdm transformers triton typer typing_extensions tyro wandb webdataset xarray
    xformers yacs yaml zarr
"""

#: Packages that set up the process group themselves.
FRAMEWORKS = frozenset(_FRAMEWORKS.split())
#: Packages that neither declare options of the script nor set up process groups when they are imported.
HARMLESS = frozenset(_HARMLESS.split())
#: Libraries that read the command line in ways that are not read here.
OWN_WAYS = frozenset({"clize", "cleo", "docopt", "getopt", "gin", "hydra", "hydra_zen", "ml_collections", "optparse"})
OWN_WAYS |= {"plac", "sacred", "tap"}
