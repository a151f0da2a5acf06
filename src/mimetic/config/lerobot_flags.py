"""Flags that LeRobot has and mimetic does not have yet, so that they are answered as such and not as unknown.

`NEXT` are settings of LeRobot after 0.6.1 with their defaults: a config file that holds them at their defaults is
accepted, because they change nothing there. `OF_CHOICES` are the fields of policies, environments and so on that
`Catalog` entries name without an implementation; an entry is deleted here when it is built. Read only when a name is
not one of ours.
"""

from __future__ import annotations

from typing import Any

NEXT: dict[str, Any] = {
    "checkpoint_format": "safetensors",
    "parallelism.dp_replicate": 1,
    "parallelism.dp_shard": 1,
    "parallelism.context_parallel.ring_degree": 1,
    "parallelism.context_parallel.ulysses_degree": 1,
    "parallelism.cfg_parallel": 1,
    "accelerator.fsdp.reshard_after_forward": True,
    "accelerator.fsdp.wrap_modules": None,
    "accelerator.fsdp.min_num_params": None,
    "accelerator.fsdp.cpu_offload": False,
    "accelerator.fsdp.ignored_modules": None,
    "accelerator.ddp.find_unused_parameters": True,
    "accelerator.ddp.gradient_as_bucket_view": False,
    "accelerator.ddp.static_graph": False,
}

OF_CHOICES: dict[str, dict[str, str]] = {
    "env": {
        "gym_manipulator": (
            "task fps features features_map max_parallel_tasks disable_env_checker robot.type teleop.type "
            "processor.control_mode processor.observation.add_joint_velocity_to_observation "
            "processor.observation.add_current_to_observation processor.observation.add_ee_pose_to_observation "
            "processor.observation.display_cameras processor.image_preprocessing.crop_params_dict "
            "processor.image_preprocessing.resize_size processor.gripper.use_gripper "
            "processor.gripper.gripper_penalty processor.reset.fixed_reset_joint_positions "
            "processor.reset.reset_time_s processor.reset.control_time_s processor.reset.terminate_on_success "
            "processor.inverse_kinematics.urdf_path processor.inverse_kinematics.target_frame_name "
            "processor.inverse_kinematics.end_effector_bounds "
            "processor.inverse_kinematics.end_effector_step_sizes processor.reward_classifier.pretrained_path "
            "processor.reward_classifier.success_threshold processor.reward_classifier.success_reward "
            "processor.max_gripper_pos name"
        ),
        "isaaclab_arena": (
            "task fps features features_map max_parallel_tasks disable_env_checker hub_path episode_length "
            "num_envs embodiment object mimic teleop_device seed device disable_fabric enable_cameras headless "
            "enable_pinocchio environment state_dim action_dim camera_height camera_width video video_length "
            "video_interval state_keys camera_keys kwargs"
        ),
        "libero_plus": (
            "task fps features features_map max_parallel_tasks disable_env_checker task_ids episode_length "
            "obs_type render_mode camera_name init_states hard_reset camera_name_mapping observation_height "
            "observation_width is_libero_plus control_mode"
        ),
        "robocasa": (
            "task fps features features_map max_parallel_tasks disable_env_checker episode_length obs_type "
            "render_mode camera_name observation_height observation_width visualization_height "
            "visualization_width split obj_registries"
        ),
        "robomme": (
            "task fps features features_map max_parallel_tasks disable_env_checker episode_length action_space "
            "dataset_split task_ids front_camera_name wrist_camera_name"
        ),
        "robotwin": (
            "task fps features features_map max_parallel_tasks disable_env_checker episode_length obs_type "
            "render_mode camera_names observation_height observation_width action_mode"
        ),
        "vlabench": (
            "task fps features features_map max_parallel_tasks disable_env_checker episode_length obs_type "
            "render_mode render_resolution robot action_mode"
        ),
    },
    "policy": {
        "diffusion": (
            "horizon n_action_steps normalization_mapping drop_n_last_frames vision_backbone resize_shape "
            "crop_ratio crop_shape crop_is_random pretrained_backbone_weights use_group_norm "
            "spatial_softmax_num_keypoints use_separate_rgb_encoder_per_camera down_dims kernel_size n_groups "
            "diffusion_step_embed_dim use_film_scale_modulation gradient_checkpointing noise_scheduler_type "
            "num_train_timesteps beta_schedule beta_start beta_end prediction_type clip_sample clip_sample_range "
            "num_inference_steps compile_model compile_mode do_mask_loss_for_padding optimizer_lr optimizer_betas "
            "optimizer_eps optimizer_weight_decay scheduler_name scheduler_warmup_steps"
        ),
        "eo1": (
            "vlm_base vlm_config image_min_pixels image_max_pixels use_fast_processor chunk_size n_action_steps "
            "max_state_dim max_action_dim num_denoise_steps num_action_layers action_act time_sampling_beta_alpha "
            "time_sampling_beta_beta time_sampling_scale time_sampling_offset min_period max_period "
            "supervise_padding_action_dims supervise_padding_actions dtype force_fp32_autocast "
            "attn_implementation gradient_checkpointing normalization_mapping optimizer_lr optimizer_betas "
            "optimizer_eps optimizer_weight_decay optimizer_grad_clip_norm scheduler_warmup_steps "
            "scheduler_decay_steps scheduler_decay_lr"
        ),
        "evo1": (
            "training_stage chunk_size n_action_steps max_state_dim max_action_dim max_views image_resolution "
            "empty_cameras postprocess_action_dim binarize_gripper gripper_index gripper_threshold "
            "gripper_below_threshold_value gripper_above_threshold_value normalization_mapping vlm_model_name "
            "vlm_num_layers vlm_dtype max_text_length use_flash_attn action_head embed_dim hidden_dim "
            "state_hidden_dim num_heads num_layers dropout num_inference_timesteps num_categories return_cls_only "
            "enable_gradient_checkpointing gradient_checkpointing_use_reentrant finetune_vlm "
            "finetune_language_model finetune_vision_model finetune_action_head apply_training_stage_defaults "
            "task_field embodiment_id_field default_embodiment_id rtc_config.enabled "
            "rtc_config.prefix_attention_schedule rtc_config.max_guidance_weight rtc_config.execution_horizon "
            "rtc_config.debug rtc_config.debug_maxlen optimizer_lr optimizer_betas optimizer_eps "
            "optimizer_weight_decay optimizer_grad_clip_norm scheduler_warmup_steps rtc_config.mode"
        ),
        "fastwam": (
            "action_dim proprio_dim action_horizon n_action_steps num_video_frames action_video_freq_ratio "
            "image_size context_len model_id tokenizer_model_id text_encoder_model_id base_model_id "
            "tokenizer_max_len load_text_encoder mot_checkpoint_mixed_attn torch_dtype prompt_template "
            "num_inference_steps inference_seed rand_device text_cfg_scale negative_prompt sigma_shift tiled "
            "fp32_attention use_gradient_checkpointing freeze_video_expert toggle_action_dimensions "
            "video_scheduler action_scheduler loss video_dit_config action_dit_config normalization_mapping "
            "optimizer_lr optimizer_weight_decay compile_action_infer"
        ),
        "gaussian_actor": (
            "normalization_mapping dataset_stats storage_device vision_encoder_name freeze_vision_encoder "
            "image_encoder_hidden_dim shared_encoder num_discrete_actions image_embedding_pooling_dim "
            "state_encoder_hidden_dim latent_dim online_steps online_buffer_capacity offline_buffer_capacity "
            "async_prefetch online_step_before_learning actor_learner_config.learner_host "
            "actor_learner_config.learner_port actor_learner_config.policy_parameters_push_frequency "
            "actor_learner_config.queue_get_timeout concurrency.actor concurrency.learner "
            "concurrency.multiprocessing_context actor_network_kwargs.hidden_dims "
            "actor_network_kwargs.activate_final policy_kwargs.use_tanh_squash policy_kwargs.std_min "
            "policy_kwargs.std_max policy_kwargs.init_final discrete_critic_network_kwargs.hidden_dims "
            "discrete_critic_network_kwargs.activate_final discrete_critic_network_kwargs.final_activation"
        ),
        "groot": (
            "chunk_size n_action_steps max_state_dim max_action_dim normalization_mapping base_model_path "
            "action_decode_transform embodiment_tag tune_llm tune_visual tune_projector tune_diffusion_model "
            "tune_vlln tune_top_llm_layers num_inference_timesteps rtc_ramp_rate use_flash_attention "
            "use_relative_actions relative_exclude_joints optimizer_lr optimizer_betas optimizer_eps "
            "optimizer_weight_decay warmup_ratio use_bf16 model_params_fp32 image_size tokenizer_assets_repo "
            "lora_rank lora_alpha lora_dropout lora_full_model video_backend balance_dataset_weights "
            "balance_trajectory_weights dataset_paths output_dir save_steps max_steps batch_size "
            "dataloader_num_workers report_to resume"
        ),
        "lingbot_va": (
            "patch_size num_attention_heads attention_head_dim in_channels out_channels action_dim text_dim "
            "freq_dim ffn_dim num_layers cross_attn_norm eps rope_max_seq_len attn_mode wan_pretrained_path dtype "
            "text_encoder_device obs_cam_keys image_hflip camera_layout height width action_per_frame "
            "frame_chunk_size attn_window num_inference_steps video_exec_step action_num_inference_steps "
            "guidance_scale action_guidance_scale snr_shift action_snr_shift max_sequence_length "
            "used_action_channel_ids save_predicted_video normalization_mapping optimizer_lr optimizer_betas "
            "optimizer_eps optimizer_weight_decay optimizer_grad_clip_norm scheduler_warmup_steps"
        ),
        "molmoact2": (
            "checkpoint_path checkpoint_revision checkpoint_force_download chunk_size n_action_steps action_mode "
            "inference_action_mode discrete_action_tokenizer discrete_generation_max_steps norm_tag setup_type "
            "control_mode image_keys normalize_language add_setup_tokens add_control_tokens normalize_gripper "
            "num_state_tokens max_sequence_length expected_max_action_dim num_flow_timesteps flow_matching_cutoff "
            "flow_matching_time_offset flow_matching_time_scale flow_matching_beta_alpha flow_matching_beta_beta "
            "num_inference_steps mask_action_dim_padding enable_inference_cuda_graph per_episode_seed eval_seed "
            "rtc_config.enabled rtc_config.prefix_attention_schedule rtc_config.max_guidance_weight "
            "rtc_config.execution_horizon rtc_config.debug rtc_config.debug_maxlen joint_signs joint_offsets "
            "enable_lora_vlm lora_rank lora_alpha lora_dropout lora_bias enable_lora_action_expert "
            "enable_knowledge_insulation freeze_embedding train_action_expert_only gradient_checkpointing "
            "model_dtype softmax_auxiliary_loss softmax_auxiliary_loss_scale discrete_loss_token_weighting "
            "optimizer_lr optimizer_vit_lr optimizer_connector_lr optimizer_action_expert_lr optimizer_betas "
            "optimizer_eps optimizer_weight_decay optimizer_grad_clip_norm scheduler_warmup_steps "
            "scheduler_decay_steps scheduler_decay_lr normalization_mapping dataset_feature_names norm_stats_path "
            "rtc_config.mode train_mode_vlm compile_model dtype llm_residual_dropout"
        ),
        "multi_task_dit": (
            "horizon n_action_steps objective noise_scheduler_type num_train_timesteps beta_schedule beta_start "
            "beta_end prediction_type clip_sample clip_sample_range num_inference_steps sigma_min "
            "num_integration_steps integration_method timestep_sampling_strategy timestep_sampling_s "
            "timestep_sampling_alpha timestep_sampling_beta hidden_dim num_layers num_heads dropout "
            "use_positional_encoding timestep_embed_dim use_rope rope_base vision_encoder_name "
            "use_separate_rgb_encoder_per_camera vision_encoder_lr_multiplier image_resize_shape image_crop_shape "
            "image_crop_is_random text_encoder_name tokenizer_max_length tokenizer_padding tokenizer_padding_side "
            "tokenizer_truncation normalization_mapping optimizer_lr optimizer_betas optimizer_eps "
            "optimizer_weight_decay scheduler_name scheduler_warmup_steps do_mask_loss_for_padding "
            "drop_n_last_frames"
        ),
        "pi0": (
            "paligemma_variant action_expert_variant dtype chunk_size n_action_steps max_state_dim max_action_dim "
            "num_inference_steps time_sampling_beta_alpha time_sampling_beta_beta time_sampling_scale "
            "time_sampling_offset min_period max_period use_relative_actions relative_exclude_joints "
            "action_feature_names rtc_config.enabled rtc_config.prefix_attention_schedule "
            "rtc_config.max_guidance_weight rtc_config.execution_horizon rtc_config.debug rtc_config.debug_maxlen "
            "image_resolution empty_cameras normalization_mapping gradient_checkpointing compile_model "
            "compile_mode freeze_vision_encoder train_expert_only optimizer_lr optimizer_betas optimizer_eps "
            "optimizer_weight_decay optimizer_grad_clip_norm scheduler_warmup_steps scheduler_decay_steps "
            "scheduler_decay_lr tokenizer_max_length rtc_config.mode"
        ),
        "pi05": (
            "paligemma_variant action_expert_variant dtype chunk_size n_action_steps max_state_dim max_action_dim "
            "num_inference_steps time_sampling_beta_alpha time_sampling_beta_beta time_sampling_scale "
            "time_sampling_offset min_period max_period use_relative_actions relative_exclude_joints "
            "action_feature_names rtc_config.enabled rtc_config.prefix_attention_schedule "
            "rtc_config.max_guidance_weight rtc_config.execution_horizon rtc_config.debug rtc_config.debug_maxlen "
            "image_resolution empty_cameras tokenizer_max_length normalization_mapping gradient_checkpointing "
            "compile_model compile_mode freeze_vision_encoder train_expert_only optimizer_lr optimizer_betas "
            "optimizer_eps optimizer_weight_decay optimizer_grad_clip_norm scheduler_warmup_steps "
            "scheduler_decay_steps scheduler_decay_lr use_visual_memory use_proprioceptive_memory memory_frames "
            "memory_stride memory_temporal_attention_every rtc_config.mode rtc_training_max_delay"
        ),
        "pi0_fast": (
            "paligemma_variant action_expert_variant dtype chunk_size n_action_steps max_state_dim max_action_dim "
            "max_action_tokens use_relative_actions relative_exclude_joints action_feature_names "
            "rtc_config.enabled rtc_config.prefix_attention_schedule rtc_config.max_guidance_weight "
            "rtc_config.execution_horizon rtc_config.debug rtc_config.debug_maxlen image_resolution empty_cameras "
            "tokenizer_max_length text_tokenizer_name action_tokenizer_name temperature max_decoding_steps "
            "fast_skip_tokens validate_action_token_prefix use_kv_cache normalization_mapping "
            "gradient_checkpointing compile_model compile_mode optimizer_lr optimizer_betas optimizer_eps "
            "optimizer_weight_decay optimizer_grad_clip_norm scheduler_warmup_steps scheduler_decay_steps "
            "scheduler_decay_lr rtc_config.mode"
        ),
        "tdmpc": (
            "n_action_repeats horizon n_action_steps normalization_mapping image_encoder_hidden_dim "
            "state_encoder_hidden_dim latent_dim q_ensemble_size mlp_dim discount use_mpc cem_iterations max_std "
            "min_std n_gaussian_samples n_pi_samples uncertainty_regularizer_coeff n_elites "
            "elite_weighting_temperature gaussian_mean_momentum max_random_shift_ratio reward_coeff "
            "expectile_weight value_coeff consistency_coeff advantage_scaling pi_coeff temporal_decay_coeff "
            "target_model_momentum optimizer_lr"
        ),
        "vla_jepa": (
            "chunk_size n_action_steps normalization_mapping qwen_model_name jepa_encoder_name freeze_qwen "
            "enable_world_model reinit_modules tokenizer_padding_side prompt_template special_action_token "
            "embodied_action_token action_dim state_dim num_action_tokens_per_timestep "
            "num_embodied_action_tokens_per_instruction num_inference_timesteps action_hidden_size "
            "action_model_type action_num_layers action_num_heads action_attention_head_dim action_dropout "
            "action_num_timestep_buckets action_noise_beta_alpha action_noise_beta_beta action_noise_s "
            "num_target_vision_tokens action_max_seq_len num_video_frames predictor_depth predictor_num_heads "
            "predictor_mlp_ratio predictor_dropout world_model_loss_weight jepa_tubelet_size "
            "repeated_diffusion_steps resize_images_to binarize_gripper_action pre_snap_gripper_action "
            "clip_normalized_actions gripper_dim gripper_threshold torch_dtype optimizer_lr optimizer_betas "
            "optimizer_eps optimizer_weight_decay optimizer_grad_clip_norm scheduler_warmup_steps "
            "scheduler_decay_steps scheduler_decay_lr use_relative_actions relative_exclude_joints "
            "action_feature_names world_model_num_views causal_world_model_context gripper_joint_names"
        ),
        "vqbet": (
            "n_action_pred_token action_chunk_size normalization_mapping vision_backbone crop_shape "
            "crop_is_random pretrained_backbone_weights use_group_norm spatial_softmax_num_keypoints "
            "n_vqvae_training_steps vqvae_n_embed vqvae_embedding_dim vqvae_enc_hidden_dim gpt_block_size "
            "gpt_input_dim gpt_output_dim gpt_n_layer gpt_n_head gpt_hidden_dim dropout offset_loss_weight "
            "primary_code_loss_weight secondary_code_loss_weight bet_softmax_temperature sequentially_select "
            "optimizer_lr optimizer_betas optimizer_eps optimizer_weight_decay optimizer_vqvae_lr "
            "optimizer_vqvae_weight_decay scheduler_warmup_steps"
        ),
        "wall_x": (
            "chunk_size n_action_steps max_action_dim max_state_dim normalization_mapping pretrained_name_or_path "
            "action_tokenizer_path prediction_mode attn_implementation vision_attn_implementation optimizer_lr "
            "optimizer_betas optimizer_eps optimizer_weight_decay optimizer_grad_clip_norm scheduler_warmup_steps "
            "scheduler_decay_steps scheduler_decay_lr"
        ),
        "xvla": (
            "chunk_size n_action_steps dtype normalization_mapping florence_config tokenizer_name "
            "tokenizer_max_length tokenizer_padding_side pad_language_to hidden_size depth num_heads mlp_ratio "
            "num_domains len_soft_prompts dim_time max_len_seq use_hetero_proj action_mode num_denoising_steps "
            "use_proprio max_state_dim max_action_dim domain_feature_key resize_imgs_with_padding num_image_views "
            "empty_cameras freeze_vision_encoder freeze_language_encoder train_policy_transformer "
            "train_soft_prompts optimizer_lr optimizer_betas optimizer_eps optimizer_weight_decay "
            "optimizer_grad_clip_norm optimizer_soft_prompt_lr_scale optimizer_soft_prompt_warmup_lr_scale "
            "scheduler_warmup_steps scheduler_decay_steps scheduler_decay_lr"
        ),
    },
    "reward_model": {
        "reward_classifier": (
            "input_features output_features device pretrained_path pretrained_revision push_to_hub repo_id "
            "license tags private name num_classes hidden_dim latent_dim image_embedding_pooling_dim dropout_rate "
            "model_name model_type num_cameras learning_rate weight_decay grad_clip_norm normalization_mapping"
        ),
        "robometer": (
            "input_features output_features device pretrained_path pretrained_revision push_to_hub repo_id "
            "license tags private image_key task_key default_task max_frames reward_output success_threshold "
            "base_model_id torch_dtype use_multi_image use_per_frame_progress_token average_temporal_patches "
            "frame_pooling frame_pooling_attn_temperature progress_loss_type progress_discrete_bins vlm_config "
            "normalization_mapping"
        ),
        "sarm": (
            "input_features output_features device pretrained_path pretrained_revision push_to_hub repo_id "
            "license tags private annotation_mode n_obs_steps frame_gap max_rewind_steps image_dim text_dim "
            "hidden_dim num_heads num_layers max_state_dim drop_n_last_frames batch_size clip_batch_size dropout "
            "stage_loss_weight rewind_probability language_perturbation_probability num_sparse_stages "
            "sparse_subtask_names sparse_temporal_proportions num_dense_stages dense_subtask_names "
            "dense_temporal_proportions pretrained_model_path image_key state_key normalization_mapping"
        ),
        "topreward": (
            "input_features output_features device pretrained_path pretrained_revision push_to_hub repo_id "
            "license tags private vlm_name torch_dtype attn_implementation image_key task_key default_task "
            "max_frames fps prompt_prefix prompt_suffix_template add_chat_template success_threshold "
            "max_input_length normalization_mapping"
        ),
    },
    "optimizer": {
        "multi_adam": "lr weight_decay grad_clip_norm optimizer_groups",
        "xvla-adamw": ("lr weight_decay grad_clip_norm betas eps soft_prompt_lr_scale soft_prompt_warmup_lr_scale"),
        "molmoact2_adamw": "lr weight_decay grad_clip_norm betas eps group_grad_clip_norm",
    },
    "scheduler": {
        "molmoact2_cosine_with_warmup": "num_warmup_steps num_decay_steps peak_lr decay_lr",
    },
}
"""Kind -> choice -> names of its own fields, separated by spaces."""


def owners(name: str) -> list[str] | None:
    """Who has a flag in LeRobot.

    Args:
        name: dotted name without dashes.

    Returns:
        Choices that have it, such as ["smolvla", "pi0"]; an empty list when it belongs to no choice; None when LeRobot
        does not have it either.
    """
    kind, _, rest = name.partition(".")
    if name in NEXT or any(known.startswith(name + ".") for known in NEXT) or rest == "discover_packages_path":
        return []
    found = [choice for choice, names in OF_CHOICES.get(kind, {}).items() if _has(names.split(), rest)]
    if found:
        return found
    return [] if kind in ("env", "reward_model") and rest in ("", "type", "path") else None


def _has(names: list[str], rest: str) -> bool:
    return bool(rest) and any(known == rest or known.startswith(rest + ".") for known in names)


def is_neutral(name: str, value: Any) -> bool:
    """Whether a setting of a newer LeRobot has the value at which it changes nothing.

    Args:
        name: dotted name without dashes.
        value: plain JSON data; a mapping is neutral when all its members are.
    """
    if isinstance(value, dict):
        return all(is_neutral(f"{name}.{key}", item) for key, item in value.items())
    return name in NEXT and value == NEXT[name]
